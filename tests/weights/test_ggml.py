"""The type table equals gguf-py's, wherever gguf-py is right."""

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType, bits_per_weight, row_nbytes

# gguf 0.19 does not know Q2_0 and counts 4 bytes too many for Q8_1 (f16 d, f16 s, 32 int8 = 36).
NOT_IN_GGUF_PY = {GGMLType.Q2_0: (64, 18), GGMLType.Q8_1: (32, 36)}


def test_every_type_has_a_block_size() -> None:
    assert set(BLOCK_SIZES) == set(GGMLType)


@pytest.mark.parametrize("ggml_type", GGMLType, ids=lambda t: t.name)
def test_block_sizes_match_gguf_py(ggml_type: GGMLType) -> None:
    if ggml_type in NOT_IN_GGUF_PY:
        assert BLOCK_SIZES[ggml_type] == NOT_IN_GGUF_PY[ggml_type]
        return
    theirs = GGMLQuantizationType[ggml_type.name]
    assert theirs.value == ggml_type.value
    assert BLOCK_SIZES[ggml_type] == GGML_QUANT_SIZES[theirs]


def test_no_type_of_gguf_py_is_unknown() -> None:
    assert {t.name for t in GGMLQuantizationType} <= {t.name for t in GGMLType}


def test_row_nbytes_counts_whole_blocks() -> None:
    assert row_nbytes(GGMLType.Q4_K, 512) == 288
    assert row_nbytes(GGMLType.F32, 3) == 12
    with pytest.raises(AssertionError, match="Q4_K"):
        row_nbytes(GGMLType.Q4_K, 128)


def test_bits_per_weight() -> None:
    assert bits_per_weight(GGMLType.Q4_K) == 4.5
    assert bits_per_weight(GGMLType.MXFP4) == 4.25
