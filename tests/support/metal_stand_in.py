"""A stand-in for ``mx.fast.metal_kernel`` that runs kernels on the CPU.

Each call is first recorded with MLX's own ``metal_kernel``, which checks the arguments and writes
the whole Metal source. That source is compiled for the CPU shim, the Metal header swapped for the
shim's, its parameters unpacked in the order of their buffer numbers, and run lane by lane.
"""

import ctypes
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import numpy as np
from gguf_hybrid.metal import kernel, shim

from .metal_text import sources

MAX_LANES = 1024
"""Of a threadgroup on Apple GPUs."""
NUMPY_TYPES = {
    mx.float32: np.float32,
    mx.float16: np.float16,
    mx.int32: np.int32,
    mx.uint32: np.uint32,
    mx.uint8: np.uint8,
}
PARAMETER = r"  ((?:const )?)(?:device|constant) (\w+)\* (\w+) \[\[buffer\((\d+)\)\]\]"
real_metal_kernel = mx.fast.metal_kernel
_compiled: dict[object, Any] = {}
launched: list[tuple[str, str]] = []
"""Name and Metal source of every launch."""


class StandIn:
    """What ``metal_kernel`` returns; takes exactly the keywords that MLX's object takes."""

    def __init__(
        self,
        name: str,
        input_names: list[str],
        output_names: list[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
        atomic_outputs: bool = False,
        compile_options: object | None = None,
    ) -> None:
        assert ensure_row_contiguous and not atomic_outputs and compile_options is None
        self.name = name
        self._real = real_metal_kernel(name, input_names, output_names, source, header)

    def __call__(
        self,
        *,
        inputs: list[mx.array],
        output_shapes: list[tuple[int, ...]],
        output_dtypes: list[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: None = None,
        init_value: None = None,
    ) -> list[mx.array]:
        n_lanes = threadgroup[0]
        assert threadgroup[1:] == (1, 1) and n_lanes % 32 == 0 and n_lanes <= MAX_LANES
        assert grid[0] % n_lanes == 0, "Metal would launch a ragged threadgroup"
        arrays = [np.ascontiguousarray(np.array(x)) for x in inputs]
        launch = {
            "output_shapes": output_shapes,
            "output_dtypes": output_dtypes,
            "grid": grid,
            "threadgroup": threadgroup,
        }
        key = (self.name, *((x.dtype, x.size < 8, x.ndim == 0) for x in inputs))
        if key not in _compiled:
            source = self._recorded(inputs, launch)
            _compiled[key] = (source, _build(source))
        source, run = _compiled[key]
        launched.append((self.name, source))
        outputs = [
            _poisoned(shape, NUMPY_TYPES[t])
            for shape, t in zip(output_shapes, output_dtypes, strict=True)
        ]
        pointers = (ctypes.c_void_p * (len(arrays) + len(outputs)))(
            *(a.ctypes.data for a in (*arrays, *outputs))
        )
        groups = (ctypes.c_uint * 3)(grid[0] // n_lanes, *grid[1:])
        assert run(pointers, groups, ctypes.c_uint(n_lanes)) == 0, f"{self.name}: lanes wait"
        return [mx.array(a) for a in outputs]

    def _recorded(self, inputs: list[mx.array], launch: dict[str, Any]) -> str:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.mlxfn"
            mx.export_function(
                str(path), lambda *args: self._real(inputs=list(args), **launch), *inputs
            )
            (source,) = sources(path.read_bytes())
            return source


def _poisoned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Memory that no kernel has written: NaN, or -1."""
    values = np.empty(shape, dtype)
    values.reshape(-1).view(np.uint8)[:] = 0xFF
    return values


def _build(source: str) -> Any:
    metal = kernel.header("metal.h")
    assert source.startswith(metal)
    helpers, rest = source[len(metal) :].split("[[kernel]] void ", 1)
    signature, body = rest.split(") {\n", 1)
    parameters = re.findall(PARAMETER, signature)
    assert [int(p[3]) for p in parameters] == list(range(len(parameters)))
    unpack = [
        f"{const}{type_}* {name} = ({const}{type_}*)arguments_of_launch[{i}];"
        for const, type_, name, i in parameters
    ]
    code = [
        kernel.header("host.h"),
        "using float16_t = half;",
        helpers,
        "static void** arguments_of_launch;",
        "static void metal_body() {",
        *unpack,
        body,
        'extern "C" int run(void** arguments, const uint* grid, uint n_lanes) {',
        "arguments_of_launch = arguments;",
        "return shim::run(metal_body, {grid[0], grid[1], grid[2]}, n_lanes);",
        "}",
    ]
    return ctypes.CDLL(str(shim.library("\n".join(code)))).run
