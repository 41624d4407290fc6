"""Random tensors in memory, for checks and measurements that need no file."""

import mmap
from math import prod
from pathlib import Path

import numpy as np

from .ggml import BLOCK_SIZES, GGMLType
from .reader import TensorInfo

SCALE_OFFSETS = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q8_0: (0,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
}
"""Where a block keeps its f16 scales."""


def random_tensor(
    name: str, ggml_type: GGMLType, shape: tuple[int, ...], rng: np.random.Generator
) -> TensorInfo:
    """Weights of about unit norm per row: every code, small scales. F32 or a type of
    ``SCALE_OFFSETS``; shape in numpy order."""
    length, nbytes = BLOCK_SIZES[ggml_type]
    size = prod(shape)
    mapping = mmap.mmap(-1, max(size // length * nbytes, 1))
    raw = np.frombuffer(mapping, np.uint8, size // length * nbytes)
    if ggml_type is GGMLType.F32:
        spread = np.float32(shape[-1] ** -0.5 if len(shape) > 1 else 1.0)
        raw.view(np.float32)[:] = rng.standard_normal(size, np.float32) * spread
    else:
        blocks = raw.reshape(-1, nbytes)
        blocks[:] = rng.integers(0, 256, blocks.shape, np.uint8)
        for offset in SCALE_OFFSETS[ggml_type]:
            scales = rng.uniform(0.5, 1.0, (len(blocks), 1)) * _step(ggml_type, shape[-1])
            blocks[:, offset : offset + 2] = scales.astype(np.float16).view(np.uint8)
    return TensorInfo(name, ggml_type, shape, Path(), 0, raw.nbytes, mapping, in_file=False)


def _step(ggml_type: GGMLType, k: int) -> float:
    """The scale that gives rows of ``k`` random codes about unit norm."""
    spread = {GGMLType.Q4_0: 5, GGMLType.Q8_0: 74, GGMLType.Q6_K: 1400}.get(ggml_type, 350)
    return float(k**-0.5 / spread)
