"""Which operations take own kernels: ``GGUF_HYBRID_KERNELS``, one grammar for every backend.

``off`` leaves everything to stock MLX, ``on`` takes every own kernel there is, and a comma list
changes single operations, after the default or after a leading ``on`` or ``off``:
``matvec,-attend`` or ``off,matvec``. Names are those of ``SWITCHES``.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from gguf_hybrid.errors import BackendError

VARIABLE = "GGUF_HYBRID_KERNELS"

SWITCHES = {
    "matvec": "products of a quantised matrix with up to 64 rows, on its GGUF blocks",
    "gate_up": "silu(gate x) * up x of the chosen experts, on their GGUF blocks",
    "down": "weighted sum over the chosen experts' down products, on their GGUF blocks",
    "top_experts": "the router: softmax, the largest, their weights",
    "delta_step": "convolution and gated delta rule of single tokens",
    "attend": "attention of single tokens over KV blocks",
}
"""Operations that can be switched one by one, where a backend has both forms (Metal)."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """What the variable says. ``base``: None is the backend's own default."""

    base: bool | None = None
    named: Mapping[str, bool] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "KernelChoice":
        """Raises BackendError naming the variable and the word it does not know."""
        base: bool | None = None
        named: dict[str, bool] = {}
        for i, word in enumerate(w.strip() for w in text.split(",")):
            name = word.removeprefix("-")
            if word in {"on", "off"} and i == 0:
                base = word == "on"
            elif name in SWITCHES:
                named[name] = name == word
            elif word or i:
                known = ", ".join(SWITCHES)
                raise BackendError(
                    f"{VARIABLE}={text}: {word!r} is not known; first on or off, then any of"
                    f" {known}, with - in front to leave it to stock MLX"
                )
        return cls(base, named)

    @property
    def all_off(self) -> bool:
        """Whether nothing at all is to be an own kernel."""
        return self.base is False and not any(self.named.values())

    def asked(self, name: str) -> bool:
        """Whether the own kernel is wanted in so many words, so that it must not be replaced."""
        return self.named.get(name, self.base is True)

    def wants(self, name: str, default: bool) -> bool:
        """Whether the operation takes its own kernel; ``default`` is the backend's choice."""
        return self.named.get(name, default if self.base is None else self.base)

    def require_none_named(self, backend: str) -> None:
        """Raises BackendError if single operations are named where a backend has no such choice."""
        if self.named:
            raise BackendError(
                f"{VARIABLE}: {', '.join(self.named)}: the {backend} backend has no second form of"
                " single operations, only on and off can be said"
            )


def from_environment() -> KernelChoice:
    """Raises BackendError for an unknown word."""
    return KernelChoice.parse(os.environ.get(VARIABLE, ""))


OPERATIONS = (
    "embed",
    "norm",
    "matvec",
    "matmul",
    "delta_step",
    "delta_chunks",
    "attend",
    "attend_prompt",
    "top_experts",
    "gate_up",
    "down",
    "sample",
)
"""What the start-up log names, in the order of a forward pass."""


def paths_of(path: str) -> dict[str, str]:
    """One path for all operations but sampling, which is the CPU's."""
    return dict.fromkeys(OPERATIONS, path) | {"sample": "CPU"}


def describe(paths: Mapping[str, str]) -> str:
    """``own kernel: matvec, norm; stock MLX: attend`` from the path of each operation."""
    by_path: dict[str, list[str]] = {}
    for name in OPERATIONS:
        by_path.setdefault(paths[name], []).append(name)
    return "; ".join(f"{path}: {', '.join(names)}" for path, names in by_path.items())
