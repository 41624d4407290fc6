"""Every ggml type decodes to what gguf-py (or, where it knows no better, the formula) gives."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize

from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType
from gguf_hybrid.weights.quants import SLAB_WEIGHTS, dequantize

PLAIN = {
    GGMLType.F64: "<f8",
    GGMLType.I8: "i1",
    GGMLType.I16: "<i2",
    GGMLType.I32: "<i4",
    GGMLType.I64: "<i8",
}
OWN = (GGMLType.Q1_0, GGMLType.Q2_0, GGMLType.Q8_1, GGMLType.Q8_K)
IN_GGUF_PY = [t for t in GGMLType if t not in PLAIN and t not in OWN]


def decoded_by_gguf_py(blocks, ggml_type):
    with np.errstate(all="ignore"):
        return gguf_dequantize(blocks, GGMLQuantizationType(ggml_type.value))


@pytest.mark.parametrize("ggml_type", IN_GGUF_PY, ids=lambda t: t.name)
def test_random_blocks_decode_as_in_gguf_py(ggml_type, random_blocks):
    blocks = random_blocks(ggml_type, 512)
    shape = (2, len(blocks) // 2, BLOCK_SIZES[ggml_type].length)
    ours = dequantize(blocks.reshape(-1), ggml_type, shape)
    assert ours.dtype == np.float32 and ours.shape == shape
    theirs = decoded_by_gguf_py(blocks, ggml_type).reshape(shape)
    finite = np.isfinite(theirs)
    assert finite.mean() > 0.8
    assert np.array_equal(ours[finite], theirs[finite])


@pytest.mark.parametrize("ggml_type", PLAIN, ids=lambda t: t.name)
def test_plain_numbers_are_cast(ggml_type):
    values = np.array([[0, 1, -1, 127, -128]], PLAIN[ggml_type])
    assert dequantize(values.view(np.uint8), ggml_type, (1, 5)).tolist() == values.tolist()


def test_q1_0_is_a_sign_per_weight():
    block = np.zeros(18, np.uint8)
    block[:2] = np.array([0.5], np.float16).view(np.uint8)
    block[2], block[17] = 0b0000_0101, 0b1000_0000
    want = np.full(128, -0.5)
    want[[0, 2, 127]] = 0.5
    assert dequantize(block, GGMLType.Q1_0, (128,)).tolist() == want.tolist()


def test_q2_0_is_minus_one_to_two():
    block = np.zeros(18, np.uint8)
    block[:2] = np.array([0.5], np.float16).view(np.uint8)
    block[2], block[17] = 0b11_10_01_00, 0b11_00_00_00
    want = np.full(64, -0.5)
    want[:4], want[63] = [-0.5, 0, 0.5, 1], 1
    assert dequantize(block, GGMLType.Q2_0, (64,)).tolist() == want.tolist()


@pytest.mark.parametrize("ggml_type", [GGMLType.Q8_1, GGMLType.Q8_K], ids=lambda t: t.name)
def test_activation_formats_are_scaled_bytes(ggml_type):
    length, nbytes = BLOCK_SIZES[ggml_type]
    scale_type, start = (np.float16, 4) if ggml_type is GGMLType.Q8_1 else (np.float32, 4)
    q = (np.arange(length) % 256 - 128).astype(np.int8)
    block = np.full(nbytes, 0xAA, np.uint8)
    scale = np.array([0.25], scale_type).view(np.uint8)
    block[: len(scale)] = scale
    block[start : start + length] = q.view(np.uint8)
    assert dequantize(block, ggml_type, (length,)).tolist() == (0.25 * q).tolist()


def test_slabs_are_joined_without_seams(random_blocks):
    width = 96
    rows = SLAB_WEIGHTS // width + 3
    blocks = np.resize(random_blocks(GGMLType.Q5_0, 1000), (rows * width // 32, 22))
    whole = dequantize(blocks.reshape(-1), GGMLType.Q5_0, (rows, width))
    last = dequantize(blocks[-3:].reshape(-1), GGMLType.Q5_0, (1, width))
    assert np.array_equal(whole[-1:], last, equal_nan=True)


def test_data_must_fill_the_shape():
    with pytest.raises(AssertionError):
        dequantize(np.zeros(17, np.uint8), GGMLType.Q4_0, (32,))
