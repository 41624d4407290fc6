"""Weights of every ggml type as float32, equal to what ggml computes.

Types with scales and codes go through `blocks`; the code-book types go through gguf-py, imported on
first use. Both run on a slab of rows at a time, because their temporaries are several times the
size of the result.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .blocks import UNPACKERS, Codes, scale_field
from .ggml import BLOCK_SIZES, GGMLType, row_nbytes

SLAB_WEIGHTS = 1 << 20

_NUMBERS: dict[GGMLType, np.dtype[Any]] = {
    GGMLType.F32: np.dtype("<f4"),
    GGMLType.F16: np.dtype("<f2"),
    GGMLType.BF16: np.dtype(ml_dtypes.bfloat16),
    GGMLType.F64: np.dtype("<f8"),
    GGMLType.I8: np.dtype("<i1"),
    GGMLType.I16: np.dtype("<i2"),
    GGMLType.I32: np.dtype("<i4"),
    GGMLType.I64: np.dtype("<i8"),
}


def dequantize(
    data: NDArray[np.uint8], ggml_type: GGMLType, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """float32 weights of ``shape`` (numpy order) from the bytes of a tensor.

    ``data`` is `TensorInfo.data`, or the bytes of whole rows with ``shape`` cut accordingly.
    """
    assert data.size == row_nbytes(ggml_type, shape[-1]) * prod(shape[:-1])
    length, nbytes = BLOCK_SIZES[ggml_type]
    blocks = data.reshape(-1, nbytes)
    result = np.empty((len(blocks), length), np.float32)
    decode = _decoder(ggml_type)
    step = max(1, SLAB_WEIGHTS // length)
    # Infinite and absurd scales of a damaged file become inf and NaN, as in ggml.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            slab = slice(start, start + step)
            result[slab] = decode(blocks[slab])
    return result.reshape(shape)


def _decoder(ggml_type: GGMLType) -> Callable[[NDArray[np.uint8]], NDArray[Any]]:
    """A function from (n, block bytes) to (n, block length)."""
    if ggml_type in _NUMBERS:
        dtype = _NUMBERS[ggml_type]
        return lambda blocks: np.ascontiguousarray(blocks).view(dtype)
    if ggml_type is GGMLType.Q8_1:
        return _decode_q8_1
    if ggml_type is GGMLType.Q8_K:
        return _decode_q8_k
    # The bias of MXFP4 would overflow where its weights do not (scales from 2^125).
    if ggml_type in UNPACKERS and ggml_type is not GGMLType.MXFP4:
        return lambda blocks: _decode_codes(UNPACKERS[ggml_type](blocks))
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as gguf_dequantize

    their_type = GGMLQuantizationType(ggml_type.value)
    return lambda blocks: gguf_dequantize(blocks, their_type)


def _decode_codes(codes: Codes) -> NDArray[np.float32]:
    """(n, block length) from (n, runs) scales and biases."""
    n, runs = codes.scales.shape
    weights = codes.codes.reshape(n, runs, -1) * codes.scales[:, :, None]
    weights += codes.biases[:, :, None]
    if codes.minimums is not None:
        weights = weights.reshape(n, codes.minimums.shape[1], -1) - codes.minimums[:, :, None]
    return weights.reshape(n, -1)


def _decode_q8_1(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return scale_field(blocks, 0) * blocks[:, 4:].view(np.int8)


def _decode_q8_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    d = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return d * blocks[:, 4:260].view(np.int8).astype(np.float32)
