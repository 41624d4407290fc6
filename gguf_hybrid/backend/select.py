"""Which compute backend this installation and this command line lead to.

On Linux the ``mlx`` wheel has no backend of its own; ``mlx-cpu`` and ``mlx-cuda-13`` each bring one
and put their library in the same place, so exactly one may be installed. Nothing here imports MLX
before it has to.
"""

import logging
import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.cpu import library
from gguf_hybrid.errors import BackendError
from gguf_hybrid.runtime_config import RuntimeConfig

from .base import Backend
from .kernel_choice import VARIABLE, describe, paths_of
from .kernel_choice import from_environment as kernel_choice

log = logging.getLogger(__name__)

BACKENDS = {"mlx-cpu": "cpu", "mlx-cuda-12": "cuda", "mlx-cuda-13": "cuda", "mlx-metal": "metal"}


def installed_backends() -> list[str]:
    """Names of the installed MLX backend packages."""
    found = []
    for package in BACKENDS:
        try:
            version(package)
        except PackageNotFoundError:
            continue
        found.append(package)
    return found


def require_backend() -> str:
    """The one installed MLX backend: "cpu", "cuda" or "metal"; BackendError with the remedy."""
    found = installed_backends()
    if not found:
        extra = "" if sys.platform == "darwin" else "[cpu]"
        raise BackendError(
            f"no MLX backend is installed: pip install 'gguf-hybrid{extra}'"
            + (" (or 'gguf-hybrid[cuda13]' for an NVIDIA GPU)" if extra else "")
        )
    if len(found) > 1:
        raise BackendError(
            f"two MLX backends are installed ({', '.join(found)}) and overwrite each other: pip"
            f" uninstall -y mlx {' '.join(found)} && pip install 'gguf-hybrid[cpu]' (or [cuda13])"
        )
    return BACKENDS[found[0]]


def wants_cpu(config: RuntimeConfig) -> bool:
    """``-ngl 0`` and ``--device none`` choose the CPU; so does an installation without a GPU."""
    if config.device not in {"auto", "none", "cpu", "gpu"}:
        raise BackendError(f"--device {config.device}: unknown device, see --list-devices")
    asked = config.n_gpu_layers == 0 or config.device in {"none", "cpu"}
    if config.device == "gpu" and require_backend() == "cpu":
        raise BackendError("--device gpu: the installed MLX backend has no GPU")
    return asked or require_backend() == "cpu"


def compiled_cpu(config: RuntimeConfig) -> bool:
    """Whether the compiled CPU library will compute; ``GGUF_HYBRID_KERNELS=off`` leaves it out."""
    return wants_cpu(config) and not kernel_choice().all_off and library.find() is not None


def create_backend(model: ModelConfig, config: RuntimeConfig) -> Backend:
    """The backend for a model, with a line in the log on the path of each operation. Called on the
    engine thread, which then owns it. Raises BackendError."""
    backend, paths = _create(model, config)
    log.info("operations: %s", describe(paths))
    return backend


def _create(model: ModelConfig, config: RuntimeConfig) -> tuple[Backend, Mapping[str, str]]:
    choice = kernel_choice()
    if wants_cpu(config):
        choice.require_none_named("CPU")
    if compiled_cpu(config):
        from .cpu import CpuBackend

        if problem := library.load().problem:
            log.warning("%s", problem)
        cpu = CpuBackend(model, config.n_threads, config.n_threads_batch, config.arithmetic)
        return cpu, paths_of("CPU library")
    if wants_cpu(config):
        why = f"{VARIABLE}=off" if choice.all_off else "no compiled CPU library"
        log.warning("%s: computing in plain MLX, which is slow on a CPU", why)
    if own_cuda(config):
        from gguf_hybrid.metal.driver import Device

        from .cuda import CudaBackend

        choice.require_none_named("CUDA")
        paths = paths_of("own kernel") | {"sample": "own kernel, CPU for unusual samplers"}
        return CudaBackend(model, Device()), paths
    import mlx.core as mx

    from .mlx import MlxBackend

    on_metal = not wants_cpu(config) and require_backend() == "metal"
    device = mx.cpu if wants_cpu(config) else mx.gpu
    mlx = MlxBackend(model, device, choice if on_metal else None)
    return mlx, mlx.own.paths()


def own_cuda(config: RuntimeConfig) -> bool:
    """Whether an NVIDIA GPU will run own kernels; ``GGUF_HYBRID_KERNELS=off`` leaves it to MLX."""
    wanted = not wants_cpu(config) and require_backend() == "cuda"
    return wanted and not kernel_choice().all_off


def free_memory(config: RuntimeConfig) -> int:
    """Bytes that weights, states and KV may take on the device that will compute."""
    if wants_cpu(config):
        return host_memory()
    if own_cuda(config):
        from gguf_hybrid.metal.driver import Device

        return Device().free_memory()
    import mlx.core as mx

    info = mx.device_info()
    for key in ("free_memory", "max_recommended_working_set_size", "total_memory", "memory_size"):
        if key in info:
            return int(info[key])
    raise BackendError(f"MLX does not say how much memory the device has: {sorted(info)}")


def host_memory() -> int:
    """Bytes that can be had without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
