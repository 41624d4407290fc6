"""Kernel bodies on Metal, through ``mx.fast.metal_kernel``.

MLX writes the function around a body and picks the address space of an input from its size: arrays
of fewer than eight elements would become ``constant``, where the bodies say ``device``, so shorter
ones are padded. One variant (constants, absent arrays) is one kernel with a name of its own, which
MLX compiles once a process. Not run: no Metal device was at hand.
"""

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import mlx.core as mx

from .kernel import Body, Constants, body

DTYPES = {
    "float": mx.float32,
    "half": mx.float16,
    "int": mx.int32,
    "uint": mx.uint32,
    "uchar": mx.uint8,
    "ushort": mx.uint16,
}
"""MLX's name of each element type of the dialect."""
MIN_DEVICE_SIZE = 8
MAX_BUFFERS = 31
"""Arguments of a Metal kernel that may be arrays."""

Shape = tuple[int, ...]


class Kernel:
    """One variant of a body. Arrays are float32 unless the body says otherwise."""

    def __init__(self, body: Body, constants: Constants, absent: Collection[str] = ()) -> None:
        metal = body.metal(constants, absent)
        assert len(metal.inputs) + len(metal.outputs) <= MAX_BUFFERS, body.name
        given = [p for p in body.arguments if p.name not in absent]
        self._inputs = [p for p in given if p.kind != "out"]
        self._output_types = [DTYPES[p.type] for p in given if p.kind == "out"]
        digest = hashlib.sha256((metal.header + metal.source).encode()).hexdigest()[:16]
        self._call: Any = mx.fast.metal_kernel(
            name=f"ggh_{body.name}_{digest}",
            input_names=list(metal.inputs),
            output_names=list(metal.outputs),
            source=metal.source,
            header=metal.header,
        )

    def __call__(
        self,
        inputs: Sequence[mx.array | int],
        output_shapes: Sequence[Shape],
        grid: tuple[int, int, int],
        n_lanes: int,
    ) -> list[mx.array]:
        """Run ``grid`` threadgroups of ``n_lanes``. Inputs in the order of the body's parameters,
        absent ones left out; ints where it says ``int``. The outputs are new arrays."""
        arrays = [_argument(value, p.type) for value, p in zip(inputs, self._inputs, strict=True)]
        outputs: list[mx.array] = self._call(
            inputs=arrays,
            output_shapes=list(output_shapes),
            output_dtypes=self._output_types,
            grid=(grid[0] * n_lanes, grid[1], grid[2]),
            threadgroup=(n_lanes, 1, 1),
        )
        return outputs


class Kernels:
    """``kernels("top_experts", absent=("shared",), E=256, ...)``: built on first use and kept."""

    def __init__(self) -> None:
        self._built: dict[object, Kernel] = {}

    def __call__(self, name: str, absent: tuple[str, ...] = (), **constants: int | float) -> Kernel:
        key = (name, absent, *constants.items())
        found = self._built.get(key)
        if found is None:
            found = self._built[key] = Kernel(body(name), constants, absent)
        return found


def _argument(value: mx.array | int, type_name: str) -> mx.array:
    if isinstance(value, int):
        return mx.array([value], mx.int32)
    assert value.dtype == DTYPES[type_name], (value.dtype, type_name)
    if value.size >= MIN_DEVICE_SIZE:
        return value
    return mx.pad(value.reshape(-1), (0, MIN_DEVICE_SIZE - value.size))
