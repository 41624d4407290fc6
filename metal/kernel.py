"""Kernel bodies and what surrounds them: one body for every target.

``NAME.metal`` holds a body in the common dialect (MSL's words). Comment lines ``//:`` declare its
parameters in order: ``in`` and ``out`` are arrays, ``alias`` an input that may share memory with an
output, plain ``int`` a value passed at launch, ``const`` a number compiled in. On CUDA and on the
CPU shim the parameters become a function; for Metal MLX writes it around the body (``apple.py``).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parent
KINDS = ("in", "out", "alias", "int", "const")
HELPERS = ("blocks.h", "floats.h")
"""Headers of the common dialect, for every target; ``tiles.h`` needs int8 matrix units."""

Constants = Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One ``//:`` line; ``type`` is the element type of an array."""

    kind: str
    type: str
    name: str


@dataclass(frozen=True, slots=True)
class MetalSource:
    """A body for ``mx.fast.metal_kernel``: names of its arrays, text in front, text inside."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    header: str
    source: str


@dataclass(frozen=True)
class Body:
    """A kernel's source text and parameters."""

    name: str
    text: str

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        lines = [line[3:].split() for line in self.text.splitlines() if line.startswith("//:")]
        found = [_parameter(self.name, words) for words in lines]
        return tuple(found)

    @cached_property
    def arguments(self) -> tuple[Parameter, ...]:
        """What a launch passes: everything that is not compiled in."""
        return tuple(p for p in self.parameters if p.kind != "const")

    def cuda(self, constants: Constants) -> str:
        """A translation unit with one ``extern "C"`` kernel, ``ggh_`` and the body's name."""
        signature = ", ".join(_cuda_argument(p) for p in self.arguments)
        return "\n".join(
            [
                header("cuda.h"),
                *map(header, HELPERS),
                header("tiles.h"),
                f'extern "C" __global__ void {_bounds(constants)}ggh_{self.name}({signature}) {{',
                "await_inputs();",
                self._constants(constants),
                self.text,
                "}",
            ]
        )

    def host(self, constants: Constants) -> str:
        """A translation unit with ``int run(void** arguments, const uint* grid, uint n_lanes)``."""
        unpack = [_host_argument(p, i) for i, p in enumerate(self.arguments)]
        return "\n".join(
            [
                header("host.h"),
                *map(header, HELPERS),
                header("tiles.h"),
                "static void** arguments_of_launch;",
                f"static void ggh_{self.name}() {{",
                *unpack,
                self._constants(constants),
                self.text,
                "}",
                'extern "C" int run(void** arguments, const uint* grid, uint n_lanes) {',
                "arguments_of_launch = arguments;",
                f"return shim::run(ggh_{self.name}, {{grid[0], grid[1], grid[2]}}, n_lanes);",
                "}",
            ]
        )

    def metal(self, constants: Constants, absent: Collection[str] = ()) -> MetalSource:
        """What ``mx.fast.metal_kernel`` is made from. ``absent`` arrays are null in this variant:
        the body never touches them under these constants.

        A value is passed as an array of one, the only form that MLX gives a fixed type.
        """
        arrays = [p for p in self.arguments if p.name not in absent]
        values = [p for p in arrays if p.kind == "int"]
        lines = [f"const int {p.name} = {p.name}_at[0];" for p in values]
        lines += [_null(p) for p in self.arguments if p.name in absent]
        return MetalSource(
            inputs=tuple(f"{p.name}_at" if p.kind == "int" else p.name for p in arrays
                         if p.kind != "out"),
            outputs=tuple(p.name for p in arrays if p.kind == "out"),
            header="\n".join([header("metal.h"), *map(header, HELPERS)]),
            source="\n".join([*lines, self._constants(constants), self.text]),
        )  # fmt: skip

    def _constants(self, constants: Constants) -> str:
        wanted = [p for p in self.parameters if p.kind == "const"]
        assert {p.name for p in wanted} == set(constants), (self.name, set(constants))
        return "\n".join(
            f"constexpr {p.type} {p.name} = {_literal(p, constants[p.name])};" for p in wanted
        )


def body(name: str) -> Body:
    """The body in ``name.metal``."""
    return Body(name, (FOLDER / f"{name}.metal").read_text())


def header(name: str) -> str:
    return (FOLDER / name).read_text()


def _parameter(kernel: str, words: list[str]) -> Parameter:
    assert words[0] in KINDS, f"{kernel}: unknown parameter kind {words[0]}"
    if words[0] == "int":
        return Parameter("int", "int", words[1])
    return Parameter(words[0], words[1], words[2])


def _bounds(constants: Constants) -> str:
    """A limit on registers: RESIDENT threadgroups of LANES lanes fit a multiprocessor."""
    if "RESIDENT" not in constants:
        return ""
    return f"__launch_bounds__({constants['LANES']}, {constants['RESIDENT']}) "


def _cuda_argument(p: Parameter) -> str:
    if p.kind == "in":
        return f"const {p.type}* __restrict__ {p.name}"
    return {"out": f"{p.type}* {p.name}", "alias": f"const {p.type}* {p.name}"}.get(
        p.kind, f"int {p.name}"
    )


def _host_argument(p: Parameter, i: int) -> str:
    if p.kind == "int":
        return f"const int {p.name} = *(const int*)arguments_of_launch[{i}];"
    mutability = "" if p.kind == "out" else "const "
    return f"{mutability}{p.type}* {p.name} = ({mutability}{p.type}*)arguments_of_launch[{i}];"


def _null(p: Parameter) -> str:
    mutability = "" if p.kind == "out" else "const "
    return f"{mutability}device {p.type}* {p.name} = nullptr;"


def _literal(p: Parameter, value: int | float) -> str:
    return f"{float(value)!r}f" if p.type == "float" else str(int(value))
