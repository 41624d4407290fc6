"""Weights in device memory, as the kernels read them (``metal/blocks.h``).

Tensors go from the mapped file through two pinned buffers, so the host never holds a second copy:
while one buffer travels, the other is filled. Q6_K, Q8_0 and Q4_0 blocks are regrouped on the
device to multiples of 16 bytes.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_hybrid.errors import BackendError
from gguf_hybrid.metal.driver import HANDLE, Device
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.reader import TensorInfo

from .cuda_kernels import Kernels, Scratch

SUPERBLOCK = 256
SUPERBLOCK_NBYTES = {
    GGMLType.F32: 1024,
    GGMLType.F16: 512,
    GGMLType.BF16: 512,
    GGMLType.Q4_0: 144,
    GGMLType.Q8_0: 272,
    GGMLType.Q4_K: 144,
    GGMLType.Q5_K: 176,
    GGMLType.Q6_K: 224,
}
REPACKED = {GGMLType.Q4_0: 144, GGMLType.Q8_0: 272, GGMLType.Q6_K: 210}
"""Bytes of 256 weights in the file, for types whose layout changes."""
STAGING_NBYTES = 48 * 1024 * 1008
"""A multiple of every superblock in ``REPACKED``."""
REPACK_SIMDS = 8


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows [n, k] of a weight on the device, or a stack of them; ``stack_rows`` apart."""

    address: int
    type: GGMLType
    n: int
    k: int
    stack_rows: int

    @property
    def row_nbytes(self) -> int:
        return self.k // SUPERBLOCK * SUPERBLOCK_NBYTES[self.type]

    def rows(self, first: int, n: int) -> "Matrix":
        """Rows ``first`` ... ``first + n`` of every matrix of the stack, in place."""
        return replace(self, address=self.address + first * self.row_nbytes, n=n)


class Uploader:
    """Copies tensors to the device. ``nbytes`` counts what it has put there."""

    def __init__(self, device: Device, kernels: Kernels) -> None:
        self._device, self._kernels = device, kernels
        self._pinned = [device.pinned(STAGING_NBYTES) for _ in range(2)]
        self._sent: list[HANDLE | None] = [None, None]
        self._scratch = Scratch(device)
        self._turn = 0
        self.nbytes = 0

    def matrix(self, tensor: TensorInfo) -> Matrix:
        """Raises BackendError if a row is not a whole number of 256 weights."""
        *stack, n, k = (1, *tensor.shape) if len(tensor.shape) == 1 else tensor.shape
        if k % SUPERBLOCK:
            raise BackendError(
                f"cuda: tensor {tensor.name} has rows of {k}, not a multiple of {SUPERBLOCK}"
            )
        n_superblocks = tensor.size // SUPERBLOCK
        target = self._allocate(n_superblocks * SUPERBLOCK_NBYTES[tensor.type])
        if tensor.type in REPACKED:
            self._send_repacked(tensor, target)
        else:
            self._send(tensor.data, target)
        tensor.drop_pages()
        return Matrix(target, tensor.type, n, k, n if stack else n)

    def vector(self, tensor: TensorInfo) -> int:
        """The address of a float32 tensor."""
        if tensor.type is not GGMLType.F32:
            raise BackendError(f"cuda: tensor {tensor.name} is {tensor.type.name}, expected F32")
        target = self._allocate(tensor.nbytes)
        self._send(tensor.data, target)
        return target

    def _allocate(self, nbytes: int) -> int:
        self.nbytes += nbytes
        return self._device.allocate(nbytes)

    def _send(self, data: npt.NDArray[np.uint8], target: int) -> None:
        for first in range(0, data.size, STAGING_NBYTES):
            piece = data[first : first + STAGING_NBYTES]
            self._device.upload(target + first, self._staged(piece))
            self._sent[self._turn] = self._device.event()

    def _send_repacked(self, tensor: TensorInfo, target: int) -> None:
        raw = self._scratch("raw", STAGING_NBYTES)
        size, packed = REPACKED[tensor.type], SUPERBLOCK_NBYTES[tensor.type]
        repack = self._kernels("repack", T0=tensor.type)
        for first in range(0, tensor.nbytes, STAGING_NBYTES // size * size):
            piece = tensor.data[first : first + STAGING_NBYTES // size * size]
            n = piece.size // size
            self._device.upload(raw, self._staged(piece))
            self._sent[self._turn] = self._device.event()
            groups = -(-n // REPACK_SIMDS)
            at = target + first // size * packed
            repack.launch((groups, 1, 1), 32 * REPACK_SIMDS, raw, at, n)

    def _staged(self, piece: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """The bytes in the pinned buffer whose last transfer is over."""
        self._turn = 1 - self._turn
        sent = self._sent[self._turn]
        if sent is not None:
            self._device.wait(sent)
        buffer = self._pinned[self._turn][: piece.size]
        np.copyto(buffer, piece)
        return buffer
