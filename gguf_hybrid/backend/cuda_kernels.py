"""Kernels and scratch memory of the CUDA backend, both made on first use and kept."""

from gguf_hybrid.metal import kernel
from gguf_hybrid.metal.driver import Device, Function


class Kernels:
    """``kernels("matvec", K=2048, ...)`` is the loaded function of these constants."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._functions: dict[object, Function] = {}

    def __call__(self, name: str, **constants: int | float) -> Function:
        key = (name, *constants.items())
        found = self._functions.get(key)
        if found is None:
            found = self._device.build(kernel.body(name), constants)
            self._functions[key] = found
        return found


class Scratch:
    """Named device buffers that only grow. Those of a ``fixed`` one, which captured graphs use,
    have their full size from the start and never move."""

    def __init__(self, device: Device, fixed: bool = False) -> None:
        self._device, self._fixed = device, fixed
        self._buffers: dict[str, tuple[int, int]] = {}
        self.nbytes = 0

    def __call__(self, name: str, nbytes: int) -> int:
        """Address of at least ``nbytes``; contents survive unless the buffer had to grow."""
        address, size = self._buffers.get(name, (0, 0))
        if size < nbytes:
            assert not (address and self._fixed), f"{name} would move under captured graphs"
            if address:
                self._device.synchronize()
                self._device.release(address)
            address = self._device.allocate(nbytes)
            self._buffers[name] = (address, nbytes)
            self.nbytes += nbytes - size
        return address
