"""ggml tensors as MLX affine matrices: ``weight = scale * code + bias`` per group of a row.

The mapping is exact: with f32 scales ``mx.dequantize`` equals ggml's float32, and with f16 scales
where the table says so. Nothing is requantised; types that do not fit (code
books, NVFP4's groups of 16) stay dense. Bits per weight in memory:

    type             layout                        f32 scales  f16 scales  f16 exact
    Q1_0, TQ1_0/2_0  2 bit, groups of 128             2.5         2.25      yes
    Q2_0             2 bit, groups of 64              3           2.5       yes
    Q4_0, Q4_1       4 bit, groups of 32              6           5         yes
    Q5_0, Q5_1       5 bit, groups of 32              7           6         yes
    Q8_0, IQ4_NL     8 bit, groups of 32             10           9         yes
    Q4_K             4 bit, groups of 32              6           5         no, 2^-11 relative
    Q5_K             5 bit, groups of 32              7           6         no, 2^-11 relative
    IQ4_XS           8 bit, groups of 32             10           9         no, 2^-11 relative
    MXFP4            5 bit, groups of 32              7           6         yes, in the f16 range
    Q3_K             8 bit, groups of 128             8.5         8.25      no, bias 2^-11 relative
    Q6_K             8 bit + 5 bit, groups of 128    14          13.5       no, bias 2^-11 relative
    Q2_K             6 bit, groups of 128, minimums   8.5         7.25      no, minimums rounded
    F32, F16, BF16   dense, as stored              32 or 16
    others           dense float32                   32          16         NVFP4: yes

A factor that overflows f16 (the bias of Q8_0 from a scale of 512) is refused, not clipped.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gguf_hybrid.errors import GGUFError

from .blocks import UNPACKERS, Codes
from .ggml import BLOCK_SIZES, GGMLType, row_nbytes

SLAB_WEIGHTS = 1 << 19
MINIMUM_RUN = 16

ScaleType: TypeAlias = type[np.float32] | type[np.float16]


@dataclass(frozen=True)
class MatrixFormat:
    """One MLX affine matrix: bits of a code, weights to a scale."""

    bits: int
    group_size: int


@dataclass(frozen=True)
class Layout:
    """How a type lies in memory: the sum of ``matrices``, or dense where there are none.

    ``minimums``: a further matrix of minimums per 16 weights is subtracted. ``exact_f16``: exact
    with f16 scales (for a dense layout: in f16) too; with f32 every layout is exact.
    """

    matrices: tuple[MatrixFormat, ...]
    minimums: bool = False
    exact_f16: bool = False

    @property
    def is_dense(self) -> bool:
        return not self.matrices

    def bits_per_weight(self, scale_bits: Literal[16, 32] = 32) -> float:
        """Bits in memory per weight, with scales, biases and minimums of ``scale_bits``."""
        if self.is_dense:
            return float(scale_bits)
        matrices = sum(m.bits + 2 * scale_bits / m.group_size for m in self.matrices)
        return matrices + (scale_bits / MINIMUM_RUN if self.minimums else 0.0)


@dataclass(frozen=True)
class AffineMatrix:
    """MLX's arrays: codes (..., in * bits / 32) uint32, scales and biases (..., in / group_size).

    Codes are one little-endian bit stream per row, the first code in the lowest bits.
    """

    codes: NDArray[np.uint32]
    scales: NDArray[Any]
    biases: NDArray[Any]
    bits: int
    group_size: int


@dataclass(frozen=True)
class AffineWeight:
    """A weight that is the sum of ``matrices``, less ``minimums`` (..., in / 16) where present.

    ``x @ W.T`` is the sum of the matrices' products less ``x.reshape(..., in / 16, 16).sum(-1) @
    minimums.T``.
    """

    matrices: tuple[AffineMatrix, ...]
    minimums: NDArray[Any] | None = None


def _affine(bits: int, group_size: int, exact_f16: bool) -> Layout:
    return Layout((MatrixFormat(bits, group_size),), exact_f16=exact_f16)


_LAYOUTS: dict[GGMLType, Layout] = {
    GGMLType.Q1_0: _affine(2, 128, exact_f16=True),
    GGMLType.TQ1_0: _affine(2, 128, exact_f16=True),
    GGMLType.TQ2_0: _affine(2, 128, exact_f16=True),
    GGMLType.Q2_0: _affine(2, 64, exact_f16=True),
    GGMLType.Q4_0: _affine(4, 32, exact_f16=True),
    GGMLType.Q4_1: _affine(4, 32, exact_f16=True),
    GGMLType.Q5_0: _affine(5, 32, exact_f16=True),
    GGMLType.Q5_1: _affine(5, 32, exact_f16=True),
    GGMLType.Q8_0: _affine(8, 32, exact_f16=True),
    GGMLType.IQ4_NL: _affine(8, 32, exact_f16=True),
    GGMLType.MXFP4: _affine(5, 32, exact_f16=True),
    GGMLType.Q4_K: _affine(4, 32, exact_f16=False),
    GGMLType.Q5_K: _affine(5, 32, exact_f16=False),
    GGMLType.IQ4_XS: _affine(8, 32, exact_f16=False),
    GGMLType.Q3_K: _affine(8, 128, exact_f16=False),
    GGMLType.Q6_K: Layout((MatrixFormat(8, 128), MatrixFormat(5, 128))),
    GGMLType.Q2_K: Layout((MatrixFormat(6, 128),), minimums=True),
}
_DENSE_EXACT_F16 = frozenset({GGMLType.F16, GGMLType.NVFP4})


def layout_of(ggml_type: GGMLType) -> Layout:
    """The layout `repack` makes of a type; dense types go through `quants.dequantize`."""
    return _LAYOUTS.get(ggml_type, Layout((), exact_f16=ggml_type in _DENSE_EXACT_F16))


def repack(
    data: NDArray[np.uint8],
    ggml_type: GGMLType,
    shape: tuple[int, ...],
    scale_type: ScaleType = np.float32,
) -> AffineWeight:
    """MLX arrays of a tensor of ``shape`` (..., out, in), whose type has an affine layout.

    Works through slabs of rows, so temporaries stay small beside the result. Raises GGUFError if a
    finite scale does not fit ``scale_type``.
    """
    layout = layout_of(ggml_type)
    assert not layout.is_dense, f"{ggml_type.name} has no affine layout"
    nbytes = BLOCK_SIZES[ggml_type].nbytes
    lead, width = shape[:-1], shape[-1]
    by_row = data.reshape(prod(lead), row_nbytes(ggml_type, width))
    weight = _empty_weight(layout, len(by_row), width, scale_type)
    step = max(1, SLAB_WEIGHTS // width)
    for start in range(0, len(by_row), step):
        rows = slice(start, start + step)
        # Infinite scales of a damaged file stay infinite.
        with np.errstate(invalid="ignore", over="ignore"):
            _fill(weight, rows, UNPACKERS[ggml_type](by_row[rows].reshape(-1, nbytes)))
    return _with_lead(weight, lead)


def _empty_weight(layout: Layout, rows: int, width: int, scale_type: ScaleType) -> AffineWeight:
    matrices = tuple(
        AffineMatrix(
            codes=np.empty((rows, width * m.bits // 32), np.uint32),
            scales=np.empty((rows, width // m.group_size), scale_type),
            biases=np.empty((rows, width // m.group_size), scale_type),
            bits=m.bits,
            group_size=m.group_size,
        )
        for m in layout.matrices
    )
    minimums = np.empty((rows, width // MINIMUM_RUN), scale_type) if layout.minimums else None
    return AffineWeight(matrices, minimums)


def _with_lead(weight: AffineWeight, lead: tuple[int, ...]) -> AffineWeight:
    """The arrays of (rows, ...) as (*lead, ...): expert stacks are packed as one tall matrix."""
    matrices = tuple(
        replace(
            m,
            codes=m.codes.reshape(*lead, -1),
            scales=m.scales.reshape(*lead, -1),
            biases=m.biases.reshape(*lead, -1),
        )
        for m in weight.matrices
    )
    minimums = weight.minimums
    return AffineWeight(matrices, None if minimums is None else minimums.reshape(*lead, -1))


def _fill(weight: AffineWeight, rows: slice, codes: Codes) -> None:
    for matrix, part in zip(weight.matrices, _parts(codes, len(weight.matrices)), strict=True):
        target = matrix.codes[rows]
        target[:] = pack_bits(part.codes, matrix.bits).reshape(target.shape)
        per_block = part.codes.shape[1] // matrix.group_size
        _assign(matrix.scales[rows], _per_group(part.scales, per_block))
        _assign(matrix.biases[rows], _per_group(part.biases, per_block))
    if weight.minimums is not None:
        assert codes.minimums is not None
        _assign(weight.minimums[rows], codes.minimums)


def _parts(codes: Codes, n_matrices: int) -> list[Codes]:
    """One matrix as it is; or two, of the low 8 bits and of the bits above."""
    if n_matrices == 1:
        return [codes]
    low = Codes(codes.codes.astype(np.uint8), codes.scales, codes.biases)
    high = (codes.codes >> 8).astype(np.uint8)
    return [low, Codes(high, 256 * codes.scales, np.zeros_like(codes.biases))]


def _per_group(values: NDArray[np.float32], per_block: int) -> NDArray[np.float32]:
    return np.repeat(values, per_block // values.shape[1], axis=1)


def _assign(target: NDArray[Any], values: NDArray[np.float32]) -> None:
    """Store ``values``; narrowing may round, but not turn a finite number into infinity."""
    with np.errstate(over="raise"):
        try:
            target[:] = values.reshape(target.shape)
        except FloatingPointError:
            raise GGUFError(f"a scale does not fit into {target.dtype}") from None


def pack_bits(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """(n, k) codes to (n * k * bits / 32,) words: a bit stream, lowest bits first.

    ``k * bits`` is a multiple of 32.
    """
    if bits == 8:
        return np.ascontiguousarray(codes).reshape(-1).view("<u4")
    if bits in (2, 4):
        packed = codes[:, :: 8 // bits].copy()
        for i in range(1, 8 // bits):
            packed |= codes[:, i :: 8 // bits] << np.uint8(i * bits)
        return packed.reshape(-1).view("<u4")
    # Eight codes are ``bits`` bytes: gather them in one 64-bit word, keep its low bytes.
    eights = codes.reshape(-1, 8)
    words = eights[:, 0].astype("<u8")
    for i in range(1, 8):
        words |= eights[:, i].astype("<u8") << np.uint64(i * bits)
    low_bytes = words.view(np.uint8).reshape(-1, 8)[:, :bits]
    return np.ascontiguousarray(low_bytes).reshape(-1).view("<u4")
