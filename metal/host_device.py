"""A stand-in for ``driver.Device`` on the CPU shim: the whole CUDA backend without CUDA.

Device memory is host memory, a captured graph is the function that records it. For tests.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .kernel import Body, Constants
from .shim import Function

Array = npt.NDArray[Any]
ALIGNMENT = 256


class HostGraph:
    def __init__(self, record: Callable[[], None]) -> None:
        self.replay = record


class HostDevice:
    """What the backend uses of ``driver.Device``. Fresh memory holds ``poison`` bytes."""

    name, arch = "shim", "host"

    def __init__(self, poison: int = 0) -> None:
        self._buffers: dict[int, Array] = {}
        self._poison = poison

    def allocate(self, nbytes: int) -> int:
        raw = np.full(nbytes + ALIGNMENT, self._poison, np.uint8)
        address = -(-raw.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._buffers[address] = raw
        return address

    def release(self, address: int) -> None:
        del self._buffers[address]

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return np.zeros(nbytes, np.uint8)

    def upload(self, target: int, source: Array) -> None:
        _bytes(target, source.nbytes)[:] = np.frombuffer(source, np.uint8)

    def download(self, target: Array, source: int) -> None:
        np.copyto(target, _bytes(source, target.nbytes).view(target.dtype).reshape(target.shape))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        _bytes(target, nbytes)[:] = _bytes(source, nbytes)

    def synchronize(self) -> None:
        """Everything has happened already."""

    def event(self) -> None:
        return None

    def record(self, event: None) -> None:
        return None

    def wait(self, event: None) -> None:
        assert event is None

    def build(self, body: Body, constants: Constants) -> Function:
        return Function(body, constants)

    def capture(self, record: Callable[[], None]) -> HostGraph:
        return HostGraph(record)


def _bytes(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
