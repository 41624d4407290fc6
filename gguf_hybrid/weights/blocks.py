"""ggml blocks taken apart: integer codes in element order, with the scales and biases of runs.

For each type here ``weight = scale * code + bias``, exactly, in float32: every product is of an
f16 scale with small integers, so it fits 24 bits, and only the final sum rounds, as in ggml. Types
with 16 weights to a scale have that (integer) scale multiplied into the codes. Every function takes
(n, block bytes) uint8; codes are (n, block length), scales and biases (n, runs per block).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .ggml import GGMLType

UInt8 = NDArray[np.uint8]
Float32 = NDArray[np.float32]

FOUR = np.uint8(4)
IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16
)
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
IQ4_CODES = (IQ4_VALUES + 128).astype(np.uint8)
E2M1_CODES = (E2M1_DOUBLED + 12).astype(np.uint8)


class Codes(NamedTuple):
    """``scales * codes + biases``, minus ``minimums`` per 16 weights where there are any."""

    codes: NDArray[Any]
    scales: Float32
    biases: Float32
    minimums: Float32 | None = None


def scale_field(blocks: NDArray[np.uint8], start: int) -> NDArray[np.float32]:
    """(n, 1) float32 from the f16 at byte ``start`` of each block."""
    field = np.ascontiguousarray(blocks[:, start : start + 2])
    return field.view("<f2").astype(np.float32)


def bit_fields(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """(n, bytes * 8 / bits) fields of 1, 2 or 4 bits, the lowest of each byte first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[:, :, None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def _nibbles(packed: UInt8) -> UInt8:
    """(n, k) bytes to (n, 2k): all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _nibble_runs(packed: UInt8, run: int) -> UInt8:
    """As `_nibbles`, within each run of ``run`` bytes."""
    n = len(packed)
    return _nibbles(packed.reshape(-1, run)).reshape(n, -1)


def _fifth_bits(blocks: UInt8, start: int) -> UInt8:
    """(n, 32) values 0 or 16 from the four bytes at ``start``, one bit per element."""
    return bit_fields(blocks[:, start : start + 4], 1) << FOUR


def _q1_0(blocks: UInt8) -> Codes:
    d = scale_field(blocks, 0)
    return Codes(bit_fields(blocks[:, 2:], 1), 2 * d, -d)


def _q2_0(blocks: UInt8) -> Codes:
    d = scale_field(blocks, 0)
    return Codes(bit_fields(blocks[:, 2:], 2), d, -d)


def _q4_0(blocks: UInt8) -> Codes:
    d = scale_field(blocks, 0)
    return Codes(_nibbles(blocks[:, 2:]), d, -8 * d)


def _q4_1(blocks: UInt8) -> Codes:
    return Codes(_nibbles(blocks[:, 4:]), scale_field(blocks, 0), scale_field(blocks, 2))


def _q5_0(blocks: UInt8) -> Codes:
    d = scale_field(blocks, 0)
    return Codes(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), d, -16 * d)


def _q5_1(blocks: UInt8) -> Codes:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return Codes(codes, scale_field(blocks, 0), scale_field(blocks, 2))


def _q8_0(blocks: UInt8) -> Codes:
    d = scale_field(blocks, 0)
    return Codes(blocks[:, 2:] ^ 0x80, d, -128 * d)


def _iq4_nl(blocks: UInt8) -> Codes:
    d = scale_field(blocks, 0)
    return Codes(IQ4_CODES[_nibbles(blocks[:, 2:])], d, -128 * d)


def _mxfp4(blocks: UInt8) -> Codes:
    # E2M1 is stored doubled, hence half the scale: 2^(e - 128).
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return Codes(E2M1_CODES[_nibbles(blocks[:, 1:])], scale, -12 * scale)


def _scales_and_minimums(packed: UInt8) -> tuple[UInt8, UInt8]:
    """(n, 8) six-bit scales and minimums from the 12 bytes of Q4_K and Q5_K."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = [low & 63, (high & 15) | (low >> 6 << 4)]
    minimums = [middle & 63, (high >> 4) | (middle >> 6 << 4)]
    return np.concatenate(scales, axis=1), np.concatenate(minimums, axis=1)


def _k_codes(blocks: UInt8, codes: UInt8) -> Codes:
    """Q4_K and Q5_K differ in their codes only."""
    scales, minimums = _scales_and_minimums(blocks[:, 4:16])
    d, dmin = scale_field(blocks, 0), scale_field(blocks, 2)
    return Codes(codes, d * scales, -(dmin * minimums))


def _q4_k(blocks: UInt8) -> Codes:
    return _k_codes(blocks, _nibble_runs(blocks[:, 16:], 32))


def _q5_k(blocks: UInt8) -> Codes:
    bits = bit_fields(blocks[:, 16:48], 1).reshape(-1, 32, 8).swapaxes(1, 2).reshape(-1, 256)
    return _k_codes(blocks, _nibble_runs(blocks[:, 48:], 32) | (bits << FOUR))


def _two_bit_codes(packed: UInt8) -> UInt8:
    """(n, 64) to (n, 256): in each half, four runs of 32 from bits 0-1, 2-3, 4-5, 6-7."""
    fields = bit_fields(packed, 2).reshape(-1, 2, 32, 4)
    return fields.swapaxes(2, 3).reshape(-1, 256)


def _tq2_0(blocks: UInt8) -> Codes:
    d = scale_field(blocks, 64)
    return Codes(_two_bit_codes(blocks[:, :64]), d, -d)


def _tq1_0(blocks: UInt8) -> Codes:
    """Five ternary digits to a byte, the first in the highest place; four in the last bytes."""
    runs = [(blocks[:, 0:32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4)]
    shifted = [run * np.uint8(3**digit) for run, digits in runs for digit in range(digits)]
    # A byte holds the digits as a fraction of 256, rounded up: the top digit is byte * 3 // 256.
    codes = (np.concatenate(shifted, axis=1).astype(np.uint16) * 3 >> 8).astype(np.uint8)
    d = scale_field(blocks, 52)
    return Codes(codes, d, -d)


def _per_16(values: NDArray[Any]) -> NDArray[Any]:
    return np.repeat(values, 16, axis=1)


def _q2_k(blocks: UInt8) -> Codes:
    """Codes scale * q in 0..45; the minimums stay apart, 16 to a block."""
    scales = blocks[:, :16]
    d, dmin = scale_field(blocks, 80), scale_field(blocks, 82)
    codes = _two_bit_codes(blocks[:, 16:80]) * _per_16(scales & 15)
    return Codes(codes, d, np.zeros_like(d), dmin * (scales >> 4))


def _q3_k_scales(packed: UInt8) -> NDArray[np.int16]:
    """(n, 16) scales in -32..31 from 12 bytes."""
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = bit_fields(packed[:, 8:12], 2).reshape(-1, 4, 4).swapaxes(1, 2).reshape(-1, 16)
    scales: NDArray[np.int16] = (low | (high << FOUR)).astype(np.int16)
    return scales - np.int16(32)


def _q3_k(blocks: UInt8) -> Codes:
    """Codes scale * q + 124 with signed scale and q: 0..252."""
    high = bit_fields(blocks[:, :32], 1).reshape(-1, 32, 8).swapaxes(1, 2).reshape(-1, 256)
    q = (_two_bit_codes(blocks[:, 32:96]) | (high << 2)).astype(np.int16) - 4
    codes = q * _per_16(_q3_k_scales(blocks[:, 96:108])) + 124
    d = scale_field(blocks, 108)
    return Codes(codes.astype(np.uint8), d, -124 * d)


def _q6_k(blocks: UInt8) -> Codes:
    """Codes scale * (q - 32) + 4064: 13 bits."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None] & 15
    high = bit_fields(blocks[:, 128:192], 2).reshape(-1, 2, 32, 4).swapaxes(2, 3)
    q = (low.reshape(-1, 256) | (high.reshape(-1, 256) << 4)).astype(np.int16) - 32
    codes = q * _per_16(blocks[:, 192:208].view(np.int8).astype(np.int16)) + 4064
    d = scale_field(blocks, 208)
    return Codes(codes.astype(np.uint16), d, -4064 * d)


def _iq4_xs(blocks: UInt8) -> Codes:
    low = bit_fields(blocks[:, 4:8], 4)
    high = bit_fields(blocks[:, 2:4], 2)
    scales = scale_field(blocks, 0) * ((low | (high << 4)).astype(np.float32) - 32)
    return Codes(IQ4_CODES[_nibble_runs(blocks[:, 8:], 16)], scales, -128 * scales)


UNPACKERS: dict[GGMLType, Callable[[UInt8], Codes]] = {
    GGMLType.Q1_0: _q1_0,
    GGMLType.Q2_0: _q2_0,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.MXFP4: _mxfp4,
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
    GGMLType.IQ4_XS: _iq4_xs,
    GGMLType.TQ1_0: _tq1_0,
    GGMLType.TQ2_0: _tq2_0,
}
