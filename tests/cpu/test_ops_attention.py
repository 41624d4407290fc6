"""The attention operation against float64: heads, cache types, positions, splits, rope scaling."""

import numpy as np
import pytest

from gguf_hybrid.backend.cpu import CpuBackend
from gguf_hybrid.backend.cpu_store import CpuStore
from gguf_hybrid.config import ModelConfig, RopeScaling
from gguf_hybrid.memory.store import StoreSpec
from gguf_hybrid.step import BLOCK, Row, Step

from . import reference
from .step_models import (
    BASE,
    Arrays,
    Floats,
    attention_arrays,
    config,
    feed_forward_arrays,
    row,
    tensors,
)

SHAPES = {
    "grouped": {},
    "one kv head": {"n_head": 6, "n_head_kv": 1},
    "own kv heads": {"n_head": 3, "n_head_kv": 3},
    "wide": {"head_dim": 256, "attention_scale": 1 / 16, "n_rot": 64},
    "odd": {"head_dim": 80, "n_rot": 80, "attention_scale": 0.1},
    "no rope": {"n_rot": 0},
    "linear": {"rope_scaling": RopeScaling("linear", 4.0, 64, 0.0)},
    "yarn": {"rope_scaling": RopeScaling("yarn", 4.0, 64, 1.0)},
}
# A key next to a rounding boundary of f16 may fall to the other side in float32.
TOLERANCES = {"f32": 1e-5, "f16": 1e-3}


class Attention:
    """One attention layer with random weights on the backend."""

    def __init__(self, c: ModelConfig, kv_type: str = "f32", n_threads: int = 2) -> None:
        rng = np.random.default_rng(3)
        self.kv_type = kv_type
        self.arrays: Arrays = attention_arrays(c, rng)
        self.backend = CpuBackend(c, n_threads, arithmetic="exact")
        self.block = self.backend.prepare_block(
            1, tensors(self.arrays | feed_forward_arrays(c, rng))
        )

    def new_store(self) -> CpuStore:
        return self.backend.new_store(StoreSpec(8, 16, self.kv_type))

    def run(self, rows: list[Row], store: CpuStore, x: Floats) -> Floats:
        plan = self.backend.begin(Step(tuple(rows)), store)
        y = self.backend.attend(self.block, self.backend.load(x, plan), plan, 0)
        return self.backend.evaluate(y)


def inputs(n: int, c: ModelConfig = BASE, seed: int = 4) -> Floats:
    return np.random.default_rng(seed).normal(size=(n, c.n_embd)).astype(np.float32)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 7, BLOCK + 30])
def test_a_sequence_equals_float64(shape: str, n: int, kv_type: str) -> None:
    c = config(**SHAPES[shape])
    attention, x = Attention(c, kv_type), inputs(n, c)
    got = attention.run([row(0, n, [5, 2])], attention.new_store(), x)
    rounded = np.float16 if kv_type == "f16" else np.float64
    expected = reference.attend(c, attention.arrays, x.astype(np.float64), rounded)
    error = np.abs(got - expected).max() / np.abs(expected).max()
    assert error <= TOLERANCES[kv_type]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("cuts", [[1], [63, 64, 65], [255, 256, 257], [100, 200, 300, 400, 500]])
def test_any_split_gives_the_same_bits(cuts: list[int]) -> None:
    n, blocks = 2 * BLOCK + 9, [7, 0, 3]
    attention, x = Attention(BASE, "f16"), inputs(n)
    whole = attention.run([row(0, n, blocks)], attention.new_store(), x)
    store = attention.new_store()
    pieces = [
        attention.run([row(first, end - first, blocks)], store, x[first:end])
        for first, end in zip([0, *cuts], [*cuts, n], strict=True)
    ]
    assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_row_does_not_see_its_neighbours(n_threads: int) -> None:
    attention = Attention(BASE, "f16", n_threads)
    lengths = [BLOCK + 1, 1, 40, 1]
    blocks = [[0, 1], [4], [9], [2]]
    xs = [inputs(n, seed=i) for i, n in enumerate(lengths)]
    rows = [row(0, n, b, -1, (i,)) for i, (n, b) in enumerate(zip(lengths, blocks, strict=True))]
    together = attention.run(rows, attention.new_store(), np.concatenate(xs))
    alone = [
        Attention(BASE, "f16", 1).run([r], attention.new_store(), x)
        for r, x in zip(rows, xs, strict=True)
    ]
    assert np.array_equal(together, np.concatenate(alone))


@pytest.mark.usefixtures("library")
def test_cells_beyond_the_length_are_never_read() -> None:
    attention, x = Attention(BASE, "f32"), inputs(10)
    clean = attention.run([row(0, 10, [0])], attention.new_store(), x)
    store = attention.new_store()
    store.write_block(0, np.full(store.block_nbytes, 0xFF, np.uint8))
    assert np.array_equal(attention.run([row(0, 10, [0])], store, x), clean)
