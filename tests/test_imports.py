"""Imports go down: each package may use only what stands on a lower level."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEVELS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "keys", "demo"}),
    frozenset({"config", "step", "runtime_config"}),
    frozenset({"weights", "text", "sampling", "memory"}),
    frozenset({"backend", "cpu", "metal"}),
    frozenset({"model"}),
    frozenset({"engine"}),
    frozenset({"fit"}),
    frozenset({"runtime"}),
    frozenset({"server", "tools"}),
    frozenset({"cli"}),
)
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}
MLX_FREE = {"errors", "keys", "config", "step", "runtime_config", "text", "sampling", "memory"}
MLX_FREE |= {"weights", "engine", "server", "cli"}
FENCES = {"aiohttp": {"server", "tools"}, "tokenizers": {"text"}, "llguidance": {"sampling"}}


def _sources() -> list[tuple[str, Path]]:
    """(package or module on the first level below gguf_hybrid, file)."""
    found = []
    for path in sorted((ROOT / "gguf_hybrid").rglob("*.py")):
        parts = path.relative_to(ROOT / "gguf_hybrid").parts
        found.append((parts[0].removesuffix(".py"), path))
    for top in ("server", "tools", "metal"):
        found += [(top, path) for path in sorted((ROOT / top).rglob("*.py"))]
    return [(name, path) for name, path in found if name != "__init__"]


def _imports(path: Path) -> set[str]:
    """Absolute names imported by a file; relative ones as ``gguf_hybrid.…`` above the package."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
            if node.module == "gguf_hybrid":
                names |= {f"gguf_hybrid.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize(
    ("package", "path"), _sources(), ids=lambda v: v if isinstance(v, str) else v.stem
)
def test_imports_go_down(package: str, path: Path) -> None:
    assert package in LEVEL_OF, f"{package} has no level: add it to LEVELS"
    for name in _imports(path):
        top, _, rest = name.partition(".")
        if top == "gguf_hybrid" and rest:
            used = rest.split(".")[0]
            if used == "__version__":
                continue
            assert used in LEVEL_OF, f"{path}: imports {name}, which has no level"
            allowed = used == package or LEVEL_OF[used] < LEVEL_OF[package]
            peers = {used, package} <= {"backend", "cpu", "metal"}
            assert allowed or peers, f"{path}: {package} must not import {name}"
        if top == "mlx":
            assert package not in MLX_FREE, f"{path}: {package} must not import mlx"
        for library, owners in FENCES.items():
            assert top != library or package in owners, f"{path}: {library} belongs to {owners}"
