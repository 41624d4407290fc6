"""The CUDA driver through ctypes: one device, one stream, plain device memory, captured graphs.

No CUDA toolkit and no MLX is involved. Every call's status is checked; a failure is a BackendError
naming the call. All methods are for the thread that made the ``Device``.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_hybrid.errors import BackendError

from .compile import KernelCache
from .kernel import Body, Constants

Array = npt.NDArray[Any]

COMPUTE_MAJOR, COMPUTE_MINOR = 75, 76
CAPTURE_RELAXED = 2
EVENT_DISABLE_TIMING = 2
HANDLE = ctypes.c_void_p


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_nbytes", ctypes.c_uint),
        ("stream", HANDLE),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("n_attributes", ctypes.c_uint),
    ]


PROGRAMMATIC_STREAM_SERIALIZATION = 6
_EARLY_START = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, (ctypes.c_int * 16)(1))
"""A kernel is launched while its predecessor still runs and waits, in its first instruction,
until that has finished."""


class Function:
    """A loaded kernel. ``launch`` takes addresses and ints in the order of its parameters."""

    def __init__(self, device: "Device", handle: HANDLE, is_pointer: Sequence[bool]) -> None:
        self._device, self._handle = device, handle
        self._types = [ctypes.c_uint64 if p else ctypes.c_int for p in is_pointer]

    def launch(self, grid: tuple[int, int, int], n_lanes: int, *arguments: int) -> None:
        assert len(arguments) == len(self._types)
        values = [t(a) for t, a in zip(self._types, arguments, strict=True)]
        packed = (HANDLE * len(values))(*(ctypes.addressof(v) for v in values))
        config = _LaunchConfig(
            (*grid,), (n_lanes, 1, 1), 0, self._device.stream, ctypes.pointer(_EARLY_START), 1
        )
        self._device.call("cuLaunchKernelEx", ctypes.byref(config), self._handle, packed, None)


class Graph:
    """Launches and copies captured once, replayed by one call."""

    def __init__(self, device: "Device", record: Callable[[], None]) -> None:
        self._device = device
        graph, self._executable = HANDLE(), HANDLE()
        device.call("cuStreamBeginCapture_v2", device.stream, CAPTURE_RELAXED)
        try:
            record()
        finally:
            device.call("cuStreamEndCapture", device.stream, ctypes.byref(graph))
        device.call("cuGraphInstantiateWithFlags", ctypes.byref(self._executable), graph,
                    ctypes.c_ulonglong(0))  # fmt: skip
        device.call("cuGraphDestroy", graph)

    def replay(self) -> None:
        self._device.call("cuGraphLaunch", self._executable, self._device.stream)


class Device:
    """A CUDA device, its primary context, one stream, and the kernels compiled for it."""

    def __init__(self, ordinal: int = 0, kernel_folder: Path | None = None) -> None:
        self._library = _library()
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._ordinal = device.value
        context = HANDLE()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.stream = HANDLE()
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 128, device)
        self.name = name.value.decode()
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.driver_version = version.value
        self.arch = f"sm_{self._attribute(COMPUTE_MAJOR)}{self._attribute(COMPUTE_MINOR)}"
        self.cache = KernelCache(self.arch, self.driver_version, kernel_folder)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise BackendError(f"cuda: {name} failed: {self._error(status)}")

    def _error(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(text))
        return text.value.decode() if text.value else str(status)

    def _attribute(self, which: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), which, self._ordinal)
        return value.value

    # -- memory -------------------------------------------------------------------------------

    def free_memory(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, nbytes: int) -> int:
        """Device memory, zeroed; its address."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 256)))
        self.call(
            "cuMemsetD8Async", address, ctypes.c_ubyte(0), ctypes.c_size_t(nbytes), self.stream
        )
        return address.value

    def release(self, address: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Host memory the device copies from and to at full speed; never given back."""
        address = HANDLE()
        self.call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 256)))
        assert address.value is not None
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address.value))

    def upload(self, target: int, source: Array) -> None:
        """Asynchronous; ``source`` is pinned, or stays unchanged until ``synchronize``."""
        assert source.flags.c_contiguous
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(target), HANDLE(source.ctypes.data),
                  ctypes.c_size_t(source.nbytes), self.stream)  # fmt: skip

    def download(self, target: Array, source: int) -> None:
        assert target.flags.c_contiguous
        self.call("cuMemcpyDtoHAsync_v2", HANDLE(target.ctypes.data), ctypes.c_uint64(source),
                  ctypes.c_size_t(target.nbytes), self.stream)  # fmt: skip

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(target), ctypes.c_uint64(source),
                  ctypes.c_size_t(nbytes), self.stream)  # fmt: skip

    def synchronize(self) -> None:
        self.call("cuStreamSynchronize", self.stream)

    # -- kernels ------------------------------------------------------------------------------

    def build(self, body: Body, constants: Constants) -> Function:
        """The body with these constants, from the cache on disk or compiled now."""
        cubin = self.cache.cubin(body.cuda(constants), body.name)
        module, function = HANDLE(), HANDLE()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        name = f"ggh_{body.name}".encode()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name)
        return Function(self, function, [p.kind != "int" for p in body.arguments])

    def capture(self, record: Callable[[], None]) -> Graph:
        """What ``record`` launches and copies, to be replayed; nothing runs now."""
        return Graph(self, record)

    def event(self) -> HANDLE:
        """Recorded now; for ``elapsed``."""
        event = HANDLE()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        self.call("cuEventRecord", event, self.stream)
        return event

    def record(self, event: HANDLE | None) -> HANDLE:
        """``event``, or a new one for None, now stands for all work given so far; for ``wait``."""
        if event is None:
            event = HANDLE()
            self.call("cuEventCreate", ctypes.byref(event), EVENT_DISABLE_TIMING)
        self.call("cuEventRecord", event, self.stream)
        return event

    def wait(self, event: HANDLE) -> None:
        self.call("cuEventSynchronize", event)

    def elapsed(self, first: HANDLE, last: HANDLE) -> float:
        """Milliseconds between two events."""
        self.call("cuEventSynchronize", last)
        ms = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(ms), first, last)
        return ms.value


def _library() -> ctypes.CDLL:
    for name in ("libcuda.so.1", "libcuda.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise BackendError("no CUDA driver on this machine (libcuda.so.1)")


def available() -> bool:
    """Whether there is a driver with a device."""
    try:
        library = _library()
    except BackendError:
        return False
    count = ctypes.c_int()
    return (
        library.cuInit(0) == 0
        and library.cuDeviceGetCount(ctypes.byref(count)) == 0
        and (count.value > 0)
    )
