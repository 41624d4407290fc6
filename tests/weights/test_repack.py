"""MLX reads a repacked tensor as ggml reads the file: exactly, with f32 scales."""

import mlx.core as mx
import numpy as np
import pytest

from gguf_hybrid.errors import GGUFError
from gguf_hybrid.weights.blocks import UNPACKERS
from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType
from gguf_hybrid.weights.quants import dequantize
from gguf_hybrid.weights.repack import layout_of, pack_bits, repack

AFFINE = list(UNPACKERS)
PLAIN = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")  # no weights of a model
DENSE = [t for t in GGMLType if t not in UNPACKERS and t.name not in PLAIN]
SHAPE = (3, 40, 512)  # experts, rows, row width


def bytes_of(ggml_type, random_blocks, shape=SHAPE, scale=None):
    """Random bytes of a tensor; ``scale`` bounds the f16 factors."""
    length, _ = BLOCK_SIZES[ggml_type]
    return random_blocks(ggml_type, np.prod(shape) // length, scale).reshape(-1)


def decoded_by_mlx(weight):
    total = np.float32(0)
    for m in weight.matrices:
        arrays = map(mx.array, (m.codes, m.scales, m.biases))
        part = mx.dequantize(*arrays, group_size=m.group_size, bits=m.bits)
        total = total + np.array(part.astype(mx.float32))
    if weight.minimums is not None:
        total = total - np.repeat(weight.minimums.astype(np.float32), 16, axis=-1)
    return total


@pytest.mark.parametrize("ggml_type", AFFINE, ids=lambda t: t.name)
def test_f32_scales_are_exact(ggml_type, random_blocks):
    data = bytes_of(ggml_type, random_blocks)
    want = dequantize(data, ggml_type, SHAPE)
    weight = repack(data, ggml_type, SHAPE)
    with np.errstate(all="ignore"):
        have = decoded_by_mlx(weight)
    finite = np.isfinite(have)
    assert have.shape == SHAPE and finite.mean() > 0.8
    assert np.array_equal(have[finite], want[finite])


@pytest.mark.parametrize("ggml_type", AFFINE, ids=lambda t: t.name)
def test_f16_scales_are_as_exact_as_stated(ggml_type, random_blocks):
    data = bytes_of(ggml_type, random_blocks, scale=2.0)
    want = dequantize(data, ggml_type, SHAPE)
    weight = repack(data, ggml_type, SHAPE, np.float16)
    assert all(m.scales.dtype == m.biases.dtype == np.float16 for m in weight.matrices)
    have = decoded_by_f32_arithmetic(weight)
    assert np.array_equal(have, want) == layout_of(ggml_type).exact_f16
    assert np.abs(have - want).max() <= 2**-10 * error_scale(weight)


def decoded_by_f32_arithmetic(weight):
    """As a kernel that widens the scales before it multiplies (mx.dequantize does not)."""
    widened = [
        type(m)(m.codes, m.scales.astype("f4"), m.biases.astype("f4"), m.bits, m.group_size)
        for m in weight.matrices
    ]
    return decoded_by_mlx(type(weight)(tuple(widened), weight.minimums))


def error_scale(weight):
    """The largest term that a rounded scale, bias or minimum contributes to a weight."""
    terms = [np.abs(m.biases.astype("f4")).max() for m in weight.matrices]
    terms += [(1 << m.bits) * np.abs(m.scales.astype("f4")).max() for m in weight.matrices]
    minimums = 0 if weight.minimums is None else np.abs(weight.minimums.astype("f4")).max()
    return sum(terms) + minimums


@pytest.mark.parametrize("ggml_type", AFFINE, ids=lambda t: t.name)
@pytest.mark.parametrize("bits", [16, 32])
def test_bits_per_weight_are_as_stated(ggml_type, bits, random_blocks):
    data = bytes_of(ggml_type, random_blocks, scale=1.0)
    weight = repack(data, ggml_type, SHAPE, np.float32 if bits == 32 else np.float16)
    arrays = [a for m in weight.matrices for a in (m.codes, m.scales, m.biases)]
    arrays += [] if weight.minimums is None else [weight.minimums]
    nbytes = sum(a.nbytes for a in arrays)
    assert nbytes * 8 / np.prod(SHAPE) == layout_of(ggml_type).bits_per_weight(bits)


@pytest.mark.parametrize("ggml_type", AFFINE, ids=lambda t: t.name)
def test_products_of_the_parts_are_the_product(ggml_type, random_blocks):
    shape = (64, 256)
    data = bytes_of(ggml_type, random_blocks, shape, scale=1 / 256)
    weight = repack(data, ggml_type, shape)
    x = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)
    have = sum(
        np.array(
            mx.quantized_matmul(
                *map(mx.array, (x, m.codes, m.scales, m.biases)),
                transpose=True,
                group_size=m.group_size,
                bits=m.bits,
            )
        )
        for m in weight.matrices
    )
    if weight.minimums is not None:
        have = have - x.reshape(3, -1, 16).sum(-1) @ weight.minimums.T
    w = dequantize(data, ggml_type, shape).astype(np.float64)
    assert np.abs(have - x @ w.T).max() <= 1e-5 * (np.abs(x) @ np.abs(w).T).max()


@pytest.mark.parametrize("bits", range(1, 9))
def test_packed_codes_are_one_bit_stream(bits):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (5, 64), dtype=np.uint8)
    words = pack_bits(codes, bits)
    stream = np.unpackbits(words.view(np.uint8), bitorder="little").reshape(-1, bits)
    assert (stream @ (1 << np.arange(bits))).tolist() == codes.reshape(-1).tolist()


def test_every_type_has_a_layout():
    dense = {t for t in GGMLType if layout_of(t).is_dense}
    assert dense | set(AFFINE) == set(GGMLType) and not dense & set(AFFINE)
    assert layout_of(GGMLType.IQ2_XS).bits_per_weight() == 32.0


@pytest.mark.parametrize("ggml_type", DENSE, ids=lambda t: t.name)
def test_dense_types_are_exact_in_f16_where_stated(ggml_type, random_blocks):
    weights = dequantize(bytes_of(ggml_type, random_blocks, scale=2.0), ggml_type, SHAPE)
    with np.errstate(all="ignore"):
        exact = np.array_equal(weights.astype(np.float16), weights, equal_nan=True)
    assert exact == layout_of(ggml_type).exact_f16


def test_a_scale_that_would_overflow_is_refused(random_blocks):
    data = np.zeros((1, 34), np.uint8)
    data[0, :2] = np.array([1000], np.float16).view(np.uint8)
    assert np.isfinite(repack(data, GGMLType.Q8_0, (1, 32)).matrices[0].biases).all()
    with pytest.raises(GGUFError, match="float16"):
        repack(data, GGMLType.Q8_0, (1, 32), np.float16)


def test_slabs_are_joined_without_seams(random_blocks):
    rows, width = 9000, 64
    blocks = np.resize(random_blocks(GGMLType.Q4_0, 1000, 1.0), (rows * 2, 18))
    (whole,) = repack(blocks, GGMLType.Q4_0, (rows, width)).matrices
    (tail,) = repack(blocks[-600:], GGMLType.Q4_0, (300, width)).matrices
    assert np.array_equal(whole.codes[-300:], tail.codes)
    assert np.array_equal(whole.scales[-300:], tail.scales)
