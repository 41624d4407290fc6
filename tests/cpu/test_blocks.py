"""Blocks and activations as the CPU library reads them."""

import gguf.quants
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from support.blocks import ALL_TYPES, random_blocks

from gguf_hybrid.cpu.library import Library, Pool
from gguf_hybrid.errors import BackendError
from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType, row_nbytes

TYPES = pytest.mark.parametrize("ggml_type", ALL_TYPES, ids=lambda t: t.name)


@TYPES
def test_values_are_those_of_the_format(library: Library, pool: Pool, ggml_type: GGMLType) -> None:
    blocks = random_blocks(ggml_type, 9, 512, np.random.default_rng(1))
    rows = np.array([3, 0, 8, 3])
    values = pool.dequantize_rows(library.weight(ggml_type, blocks, 512), rows)
    expected = gguf.quants.dequantize(blocks[rows], GGMLQuantizationType(ggml_type))
    np.testing.assert_array_equal(values, expected.reshape(4, 512))


def test_every_f16_scale_is_read_exactly(library: Library, pool: Pool) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    blocks = np.zeros((len(every), 34), np.uint8)
    blocks[:, :2] = every[:, None].view(np.uint8)
    blocks[:, 2:] = 1
    values = pool.dequantize_rows(library.weight(GGMLType.Q8_0, blocks, 32), np.arange(len(every)))
    np.testing.assert_array_equal(values[:, 5], every.view(np.float16).astype(np.float32))


def test_every_mxfp4_exponent_is_read_exactly(library: Library, pool: Pool) -> None:
    blocks = np.full((256, 17), 0x22, np.uint8)  # E2M1 code 2 is 1.0
    blocks[:, 0] = np.arange(256)
    values = pool.dequantize_rows(library.weight(GGMLType.MXFP4, blocks, 32), np.arange(256))
    with np.errstate(over="ignore"):  # 2^128
        expected = np.ldexp(np.float64(1), np.arange(256) - 127).astype(np.float32)
    np.testing.assert_array_equal(values[:, 0], expected)


def test_block_sizes_agree_with_the_file_reader(library: Library) -> None:
    for ggml_type in GGMLType:
        length = library.c.ggh_block_size(ggml_type)
        assert (length > 0) == (ggml_type in ALL_TYPES)
        if length:
            assert length == BLOCK_SIZES[ggml_type].length
            assert library.c.ggh_row_bytes(ggml_type, 512) == row_nbytes(ggml_type, 512)


@TYPES
def test_partial_blocks_are_refused(library: Library, ggml_type: GGMLType) -> None:
    length = BLOCK_SIZES[ggml_type].length
    assert library.supports(ggml_type, 2 * length)
    assert not library.supports(ggml_type, 0)
    assert not library.supports(ggml_type, -length)
    if length > 1:
        assert not library.supports(ggml_type, 2 * length + 1)
        with pytest.raises(BackendError, match="no CPU kernel"):
            library.weight(ggml_type, np.zeros((1, 8), np.uint8), length // 2)


@pytest.mark.parametrize("row", [-1, 4])
def test_rows_outside_the_matrix_are_refused(library: Library, pool: Pool, row: int) -> None:
    blocks = random_blocks(GGMLType.Q4_0, 4, 64, np.random.default_rng(2))
    weight = library.weight(GGMLType.Q4_0, blocks, 64)
    with pytest.raises(BackendError, match="out of range"):
        pool.dequantize_rows(weight, np.array([0, row]))


@pytest.mark.parametrize("block", [32, 256])
def test_activations_round_to_the_nearest_of_255_steps(library: Library, block: int) -> None:
    x = np.random.default_rng(3).standard_normal((5, 1024)).astype(np.float32)
    x[1] *= 1e-20
    x[2, :256] = 0
    codes, scales = library.quantize_activations(x, block)
    groups = x.reshape(5, -1, block)
    largest = np.abs(groups).max(-1, keepdims=True)
    np.testing.assert_array_equal(scales, (largest / np.float32(127))[..., 0])
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, 0)
    expected = np.rint(groups * inverse.astype(np.float32)).astype(np.int8)
    np.testing.assert_array_equal(codes.reshape(groups.shape), expected)


@pytest.mark.parametrize("block", [32, 256])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_numbers_stay_visible(library: Library, block: int, bad: float) -> None:
    x = np.ones((1, 512), np.float32)
    x[0, 300] = bad
    _, scales = library.quantize_activations(x, block)
    finite = np.isfinite(scales[0])
    assert not finite[300 // block]
    assert finite.sum() == len(finite) - 1


def test_activation_blocks_are_whole(library: Library) -> None:
    with pytest.raises(BackendError, match="does not support"):
        library.quantize_activations(np.ones((1, 96), np.float32), 256)
