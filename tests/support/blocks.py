"""Random blocks of every ggml type that the CPU library multiplies: all codes, sane scales."""

import numpy as np
from numpy.typing import NDArray

from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType, row_nbytes

HALF_OFFSETS = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.IQ4_XS: (0,),
}
"""Where a block keeps its f16 scales and minima."""

FLOAT_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
QUANTIZED_TYPES = (*HALF_OFFSETS, GGMLType.MXFP4)
ALL_TYPES = (*FLOAT_TYPES, *QUANTIZED_TYPES)


def random_floats(ggml_type: GGMLType, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """(size * bytes a number,) uint8 of normal numbers stored as F32, F16 or BF16."""
    values = rng.standard_normal(size).astype(np.float32)
    if ggml_type is GGMLType.F16:
        return values.astype(np.float16).view(np.uint8)
    if ggml_type is GGMLType.BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.view(np.uint8)


def with_scales(
    ggml_type: GGMLType, blocks: NDArray[np.uint8], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """``blocks`` (n_blocks, block bytes) with small random scales and minima written into it."""
    if ggml_type is GGMLType.MXFP4:
        blocks[:, 0] = rng.integers(115, 130, len(blocks))
    for offset in HALF_OFFSETS.get(ggml_type, ()):
        scales = rng.uniform(-0.02, 0.02, (len(blocks), 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8)
    return blocks


def random_blocks(
    ggml_type: GGMLType, n: int, k: int, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """(n, row bytes) uint8: n rows of k weights."""
    if ggml_type in FLOAT_TYPES:
        return random_floats(ggml_type, n * k, rng).reshape(n, -1)
    length, nbytes = BLOCK_SIZES[ggml_type]
    codes = rng.integers(0, 256, (n * k // length, nbytes), dtype=np.uint8)
    return with_scales(ggml_type, codes, rng).reshape(n, row_nbytes(ggml_type, k))
