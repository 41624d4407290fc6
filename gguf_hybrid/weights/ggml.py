"""The ggml tensor types: ids, block lengths and block sizes.

The one table of these numbers: files mix many types, and a size that is off by one byte shifts
every weight after it. A row is a whole number of blocks; rows follow each other without padding.
Q8_1 and Q8_K are activation formats: no file should hold them, but their sizes are known.
"""

from enum import IntEnum
from typing import NamedTuple


class GGMLType(IntEnum):
    """Type ids as stored in a GGUF tensor info. Ids 4, 5, 31-33 and 36-38 are retired."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42


class BlockSize(NamedTuple):
    """``length`` weights are stored in ``nbytes`` bytes."""

    length: int
    nbytes: int


BLOCK_SIZES: dict[GGMLType, BlockSize] = {
    GGMLType.F32: BlockSize(1, 4),
    GGMLType.F16: BlockSize(1, 2),
    GGMLType.BF16: BlockSize(1, 2),
    GGMLType.F64: BlockSize(1, 8),
    GGMLType.I8: BlockSize(1, 1),
    GGMLType.I16: BlockSize(1, 2),
    GGMLType.I32: BlockSize(1, 4),
    GGMLType.I64: BlockSize(1, 8),
    GGMLType.Q1_0: BlockSize(128, 18),
    GGMLType.Q2_0: BlockSize(64, 18),
    GGMLType.Q4_0: BlockSize(32, 18),
    GGMLType.Q4_1: BlockSize(32, 20),
    GGMLType.Q5_0: BlockSize(32, 22),
    GGMLType.Q5_1: BlockSize(32, 24),
    GGMLType.Q8_0: BlockSize(32, 34),
    GGMLType.Q8_1: BlockSize(32, 36),
    GGMLType.IQ4_NL: BlockSize(32, 18),
    GGMLType.MXFP4: BlockSize(32, 17),
    GGMLType.NVFP4: BlockSize(64, 36),
    GGMLType.Q2_K: BlockSize(256, 84),
    GGMLType.Q3_K: BlockSize(256, 110),
    GGMLType.Q4_K: BlockSize(256, 144),
    GGMLType.Q5_K: BlockSize(256, 176),
    GGMLType.Q6_K: BlockSize(256, 210),
    GGMLType.Q8_K: BlockSize(256, 292),
    GGMLType.IQ1_S: BlockSize(256, 50),
    GGMLType.IQ1_M: BlockSize(256, 56),
    GGMLType.IQ2_XXS: BlockSize(256, 66),
    GGMLType.IQ2_XS: BlockSize(256, 74),
    GGMLType.IQ2_S: BlockSize(256, 82),
    GGMLType.IQ3_XXS: BlockSize(256, 98),
    GGMLType.IQ3_S: BlockSize(256, 110),
    GGMLType.IQ4_XS: BlockSize(256, 136),
    GGMLType.TQ1_0: BlockSize(256, 54),
    GGMLType.TQ2_0: BlockSize(256, 66),
}


def row_nbytes(ggml_type: GGMLType, n: int) -> int:
    """Bytes of a row of ``n`` weights; ``n`` must be a multiple of the block length."""
    length, nbytes = BLOCK_SIZES[ggml_type]
    assert n % length == 0, f"{n} weights are not whole {ggml_type.name} blocks of {length}"
    return n // length * nbytes


def bits_per_weight(ggml_type: GGMLType) -> float:
    """Bits per weight as stored in the file, scales included."""
    length, nbytes = BLOCK_SIZES[ggml_type]
    return nbytes * 8 / length
