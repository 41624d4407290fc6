"""CUDA C++ to machine code by NVRTC, once: cubins are kept on disk across processes.

The key of a cubin is everything its bytes depend on: source, options, architecture, NVRTC's and the
driver's version. NVRTC comes as pip package ``nvidia-cuda-nvrtc``; it is loaded when the first
kernel is missing, so a second start needs none.
"""

import ctypes
import glob
import hashlib
import importlib.util
import os
from functools import cache
from pathlib import Path

from gguf_hybrid.errors import BackendError

OPTIONS = ("--std=c++17", "-default-device")
LIBRARIES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


class KernelCache:
    """Compiled kernels of one architecture (``"sm_90"``) in ``folder``.

    ``compiled`` counts the kernels this process had to compile.
    """

    def __init__(self, arch: str, driver_version: int, folder: Path | None = None) -> None:
        self.arch = arch
        self.folder = folder or default_folder()
        self.compiled = 0
        self._salt = f"{arch} {driver_version} {OPTIONS} {nvrtc_file()}"

    def cubin(self, source: str, name: str) -> bytes:
        """Machine code of a translation unit. Raises BackendError with NVRTC's first complaint."""
        key = hashlib.sha256(f"{self._salt}\n{source}".encode()).hexdigest()[:32]
        path = self.folder / f"{name}-{key}.cubin"
        if path.exists():
            return path.read_bytes()
        code = compile_cuda(source, name, self.arch)
        self.compiled += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(code)
        partial.replace(path)
        return code


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/gguf-hybrid/kernels``, or the same under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gguf-hybrid" / "kernels"


def compile_cuda(source: str, name: str, arch: str) -> bytes:
    """One translation unit, compiled for ``arch``."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(),
                                    0, None, None), name)  # fmt: skip
    options = [*OPTIONS, f"--gpu-architecture={arch}"]
    packed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), packed)
    if status:
        raise BackendError(f"kernel {name} does not compile: {_first_error(_log(nvrtc, program))}")
    size = ctypes.c_size_t()
    _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), name)
    code = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetCUBIN(program, code), name)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


def nvrtc_file() -> str:
    """The library that would compile, or an empty string."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        found = sorted(glob.glob(f"{root}/**/libnvrtc.so.*", recursive=True))
        if found:
            return found[0]
    return ""


@cache
def _nvrtc() -> ctypes.CDLL:
    """The loaded library: the pip package's, else the system's."""
    names = [nvrtc_file(), *LIBRARIES]
    for name in filter(None, names):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise BackendError("NVRTC was not found: pip install nvidia-cuda-nvrtc")


def _log(nvrtc: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace")


def _first_error(log: str) -> str:
    return next((line for line in log.splitlines() if "error" in line), log[:200])


def _check(status: int, name: str) -> None:
    if status:
        raise BackendError(f"kernel {name}: NVRTC status {status}")
