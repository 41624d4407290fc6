"""Products with GGUF weights: right, and the same bits whatever runs beside them."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import gguf.quants
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.blocks import ALL_TYPES, FLOAT_TYPES, QUANTIZED_TYPES, random_blocks, with_scales

from gguf_hybrid.cpu.library import Floats, Library, Mode, Pool, load
from gguf_hybrid.errors import BackendError
from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType

VARIANTS = ("portable", "avx2", "avx2-vnni", "avx512", "neon")
TYPES = pytest.mark.parametrize("ggml_type", ALL_TYPES, ids=lambda t: t.name)
MODES = pytest.mark.parametrize("mode", list(Mode), ids=lambda m: m.name.lower())


def activations(m: int, k: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32)


def decoded(blocks: NDArray[np.uint8], ggml_type: GGMLType) -> NDArray[np.float64]:
    values = gguf.quants.dequantize(blocks, GGMLQuantizationType(ggml_type))
    return values.reshape(len(blocks), -1).astype(np.float64)


def seen_by_fast(library: Library, x: Floats, ggml_type: GGMLType) -> NDArray[np.float64]:
    """The activations that a fast product multiplies with weights of this type."""
    if ggml_type in FLOAT_TYPES:
        return x.astype(np.float64)
    block = BLOCK_SIZES[ggml_type].length
    codes, scales = library.quantize_activations(x, block)
    steps = codes.reshape(*scales.shape, block) * scales[..., None].astype(np.float64)
    return steps.reshape(x.shape)


@TYPES
@MODES
@pytest.mark.parametrize("m", [1, 11])
def test_products_are_right(
    library: Library, pool: Pool, ggml_type: GGMLType, mode: Mode, m: int
) -> None:
    n, k = 37, 768
    blocks = random_blocks(ggml_type, n, k, np.random.default_rng(1))
    x = activations(m, k)
    (y,) = pool.matmul(mode, x, [library.weight(ggml_type, blocks, k)])
    w = decoded(blocks, ggml_type)
    seen = x.astype(np.float64) if mode is Mode.EXACT else seen_by_fast(library, x, ggml_type)
    allowed = 1e-6 * (np.abs(seen) @ np.abs(w).T)
    assert (np.abs(y - seen @ w.T) <= allowed).all()


@TYPES
@MODES
def test_a_row_has_the_same_bits_in_every_batch(
    library: Library, ggml_type: GGMLType, mode: Mode
) -> None:
    n, k, m = 50, 512, 21
    weight_blocks = random_blocks(ggml_type, n, k, np.random.default_rng(2))
    weight = library.weight(ggml_type, weight_blocks, k)
    x = activations(m, k)
    with Pool(library, 1) as one:
        alone = np.concatenate([one.matmul(mode, x[i : i + 1], [weight])[0] for i in range(m)])
    with Pool(library, 3) as three:
        for first, last in [(0, 2), (1, 4), (0, 5), (3, 10), (2, 10), (4, 13), (0, 21)]:
            (batch,) = three.matmul(mode, x[first:last], [weight])
            np.testing.assert_array_equal(batch, alone[first:last])


@given(
    ggml_type=st.sampled_from(ALL_TYPES),
    mode=st.sampled_from(list(Mode)),
    n=st.integers(1, 40),
    n_blocks=st.integers(1, 9),
    m=st.integers(0, 20),
    row=st.integers(0, 19),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_size(
    library: Library, ggml_type: GGMLType, mode: Mode, n: int, n_blocks: int, m: int, row: int
) -> None:
    k = n_blocks * (13 if ggml_type in FLOAT_TYPES else BLOCK_SIZES[ggml_type].length)
    blocks = random_blocks(ggml_type, n, k, np.random.default_rng(n))
    weight = library.weight(ggml_type, blocks, k)
    x = activations(m, k)
    with Pool(library, 2) as pool:
        (y,) = pool.matmul(mode, x, [weight])
        assert y.shape == (m, n)
        if row < m:
            np.testing.assert_array_equal(
                pool.matmul(mode, x[row : row + 1], [weight])[0][0], y[row]
            )
    seen = x.astype(np.float64) if mode is Mode.EXACT else seen_by_fast(library, x, ggml_type)
    w = decoded(blocks, ggml_type)
    assert (np.abs(y - seen @ w.T) <= 1e-6 * (np.abs(seen) @ np.abs(w).T)).all()


@MODES
def test_weights_that_share_an_input_do_not_meet(library: Library, pool: Pool, mode: Mode) -> None:
    k = 512
    rng = np.random.default_rng(4)
    blocks = [random_blocks(t, 20 + 7 * i, k, rng) for i, t in enumerate(ALL_TYPES)]
    weights = [library.weight(t, b, k) for t, b in zip(ALL_TYPES, blocks, strict=True)]
    x = activations(6, k)
    together = pool.matmul(mode, x, weights)
    for weight, y in zip(weights, together, strict=True):
        np.testing.assert_array_equal(pool.matmul(mode, x, [weight])[0], y)


@MODES
def test_strides_are_followed(library: Library, pool: Pool, mode: Mode) -> None:
    blocks = random_blocks(GGMLType.Q6_K, 36, 512, np.random.default_rng(5))
    x = activations(10, 600)
    (y,) = pool.matmul(mode, x[::2, :512], [library.weight(GGMLType.Q6_K, blocks[::2], 512)])
    apart = library.weight(GGMLType.Q6_K, blocks, 512)
    (dense,) = pool.matmul(mode, np.ascontiguousarray(x[::2, :512]), [apart])
    np.testing.assert_array_equal(y, dense[:, ::2])


@MODES
@pytest.mark.parametrize("ggml_type", [GGMLType.Q4_K, GGMLType.Q8_0, GGMLType.BF16])
def test_experts_are_products_with_slabs(
    library: Library, pool: Pool, ggml_type: GGMLType, mode: Mode
) -> None:
    n_experts, n, k, n_tokens, n_used = 6, 24, 256, 17, 3
    rng = np.random.default_rng(6)
    slabs = random_blocks(ggml_type, n_experts * n, k, rng).reshape(n_experts, n, -1)
    x = activations(n_tokens, k)
    x_rows = np.repeat(np.arange(n_tokens, dtype=np.int32), n_used)
    expert_ids = rng.integers(0, n_experts - 1, x_rows.shape).astype(np.int32)  # the last idles
    stack = library.weight(ggml_type, slabs, k)
    gate, up = pool.matmul_experts(mode, x, expert_ids, x_rows, [stack, stack])
    np.testing.assert_array_equal(gate, up)
    for pair, (expert, row) in enumerate(zip(expert_ids, x_rows, strict=True)):
        slab = library.weight(ggml_type, slabs[expert], k)
        np.testing.assert_array_equal(pool.matmul(mode, x[row : row + 1], [slab])[0][0], gate[pair])


@pytest.mark.parametrize("ggml_type", FLOAT_TYPES, ids=lambda t: t.name)
def test_float_weights_keep_float_activations(
    library: Library, pool: Pool, ggml_type: GGMLType
) -> None:
    blocks = random_blocks(ggml_type, 16, 200, np.random.default_rng(7))
    weight = library.weight(ggml_type, blocks, 200)
    x = activations(3, 200)
    np.testing.assert_array_equal(
        pool.matmul(Mode.FAST, x, [weight])[0], pool.matmul(Mode.EXACT, x, [weight])[0]
    )


@TYPES
@MODES
def test_a_nan_stays_in_its_row(
    library: Library, pool: Pool, ggml_type: GGMLType, mode: Mode
) -> None:
    blocks = random_blocks(ggml_type, 16, 512, np.random.default_rng(8))
    weight = library.weight(ggml_type, blocks, 512)
    x = activations(5, 512)
    (clean,) = pool.matmul(mode, x, [weight])
    x[2, 77] = np.nan
    (y,) = pool.matmul(mode, x, [weight])
    assert np.isnan(y[2]).all()
    np.testing.assert_array_equal(np.delete(y, 2, 0), np.delete(clean, 2, 0))


@pytest.mark.parametrize("ggml_type", QUANTIZED_TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_extreme_codes_do_not_overflow(
    library: Library, pool: Pool, ggml_type: GGMLType, byte: int
) -> None:
    n, k = 16, 512
    length, nbytes = BLOCK_SIZES[ggml_type]
    codes = np.full((n * k // length, nbytes), byte, np.uint8)
    blocks = with_scales(ggml_type, codes, np.random.default_rng(9)).reshape(n, -1)
    x = np.ones((2, k), np.float32)
    x[1] = -1
    (y,) = pool.matmul(Mode.FAST, x, [library.weight(ggml_type, blocks, k)])
    w = decoded(blocks, ggml_type)
    assert (np.abs(y - x @ w.T) <= 1e-6 * np.abs(w).sum(1)).all()


def digest_of_products() -> str:
    """A digest of one product of every type and mode by the variant of this process."""
    library = load()
    digest = hashlib.sha256()
    with Pool(library, 2) as pool:
        for ggml_type in ALL_TYPES:
            blocks = random_blocks(ggml_type, 33, 512, np.random.default_rng(11))
            weight = library.weight(ggml_type, blocks, 512)
            for mode in Mode:
                for m in (1, 9):
                    digest.update(pool.matmul(mode, activations(m, 512), [weight])[0].tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_gives_the_same_bits(library: Library, variant: str) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.path.insert(0, sys.argv[2])\n"
        "from gguf_hybrid.cpu.library import load\n"
        "from test_matmul import digest_of_products\n"
        "print(load().variant, digest_of_products())"
    )
    here = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-c", script, str(here), str(here.parent)],
        env={**os.environ, "GGH_CPU": variant},
        capture_output=True,
        text=True,
        check=True,
    )
    used, digest = run.stdout.split()
    if used != variant:
        pytest.skip(f"this CPU does not run {variant}")
    assert digest == digest_of_products()


def test_wrong_sizes_are_refused(library: Library, pool: Pool) -> None:
    blocks = random_blocks(GGMLType.Q4_K, 16, 512, np.random.default_rng(12))
    weight = library.weight(GGMLType.Q4_K, blocks, 512)
    other = library.weight(GGMLType.Q4_K, blocks[:, :144], 256)
    with pytest.raises(BackendError, match="size"):
        pool.matmul(Mode.FAST, activations(1, 256), [weight])
    with pytest.raises(BackendError, match="size"):
        pool.matmul(Mode.FAST, activations(1, 512), [weight, other])
    weight.type = GGMLType.IQ1_S
    with pytest.raises(BackendError, match="type"):
        pool.matmul(Mode.FAST, activations(1, 512), [weight])


@pytest.mark.parametrize(("expert", "row"), [(2, 0), (-1, 0), (0, 3), (0, -1)])
def test_experts_and_rows_out_of_range_are_refused(
    library: Library, pool: Pool, expert: int, row: int
) -> None:
    slabs = random_blocks(GGMLType.Q4_0, 32, 64, np.random.default_rng(13)).reshape(2, 16, -1)
    weight = library.weight(GGMLType.Q4_0, slabs, 64)
    ids, rows = np.array([0, expert], np.int32), np.array([0, row], np.int32)
    with pytest.raises(BackendError, match="out of range"):
        pool.matmul_experts(Mode.FAST, activations(3, 64), ids, rows, [weight])


def test_a_pool_can_use_fewer_threads_for_a_while(library: Library) -> None:
    blocks = random_blocks(GGMLType.Q4_K, 64, 512, np.random.default_rng(14))
    weight = library.weight(GGMLType.Q4_K, blocks, 512)
    x = activations(9, 512)
    with Pool(library, 4) as pool:
        (expected,) = pool.matmul(Mode.FAST, x, [weight])
        for n_threads in (1, 3, 2, 4) * 25:
            pool.limit(n_threads)
            np.testing.assert_array_equal(pool.matmul(Mode.FAST, x, [weight])[0], expected)
        with pytest.raises(BackendError, match="size"):
            pool.limit(5)
    with pytest.raises(BackendError, match="0 CPU threads"):
        Pool(library, 0)
