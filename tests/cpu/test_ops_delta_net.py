"""The Gated DeltaNet operation against float64, for every shape of heads, split and state."""

from dataclasses import replace

import numpy as np
import pytest

from gguf_hybrid.backend.cpu import CpuBackend
from gguf_hybrid.backend.cpu_store import CpuStore
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.memory.store import StoreSpec
from gguf_hybrid.step import Row, Step

from . import reference
from .step_models import (
    BASE,
    Arrays,
    Floats,
    config,
    delta_net_arrays,
    feed_forward_arrays,
    row,
    tensors,
)

SHAPES = {
    "tiled": {},
    "grouped": {"tiled_v_heads": False},
    "equal": {"ssm_group_count": 6},
    "narrow": {"ssm_state_size": 32},
    "wide": {"ssm_state_size": 128, "ssm_group_count": 1, "ssm_time_step_rank": 2},
    "widest": {"ssm_state_size": 256, "ssm_group_count": 1, "ssm_time_step_rank": 1},
    "two taps": {"ssm_conv_kernel": 2},
}
TOLERANCE = 1e-5


class Net:
    """One recurrent layer with random weights on the backend."""

    def __init__(self, c: ModelConfig, n_threads: int = 2) -> None:
        rng = np.random.default_rng(1)
        self.c = c
        self.arrays: Arrays = delta_net_arrays(c, rng)
        self.backend = CpuBackend(c, n_threads, arithmetic="exact")
        self.block = self.backend.prepare_block(
            0, tensors(self.arrays | feed_forward_arrays(c, rng))
        )

    def new_store(self) -> CpuStore:
        return self.backend.new_store(StoreSpec(12, 4, "f32"))

    def run(self, rows: list[Row], store: CpuStore, x: Floats) -> Floats:
        plan = self.backend.begin(Step(tuple(rows)), store)
        y = self.backend.gated_delta_net(self.block, self.backend.load(x, plan), plan, 0)
        return self.backend.evaluate(y)


def inputs(n: int, c: ModelConfig = BASE, seed: int = 2) -> Floats:
    return np.random.default_rng(seed).normal(size=(n, c.n_embd)).astype(np.float32)


def zeros(c: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    size = c.ssm_state_size
    conv = np.zeros((c.ssm_conv_kernel - 1, c.conv_dim))
    return conv, np.zeros((c.ssm_time_step_rank, size, size))


def assert_close(got: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(got - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 2, 33, 100])
def test_a_fresh_sequence_equals_float64(shape: str, n: int) -> None:
    c = config(**SHAPES[shape])
    net, x = Net(c), inputs(n, c)
    store = net.new_store()
    got = net.run([row(0, n, [0], -1, (0,))], store, x)
    expected, states = reference.gated_delta_net(c, net.arrays, x.astype(np.float64), *zeros(c))
    assert_close(got, expected)
    conv, delta = states[-1]
    host = store.snapshot_state(0).to_host()[0]
    assert_close(host[: c.conv_state_size], conv.reshape(-1))
    assert_close(host[c.conv_state_size :], delta.reshape(-1))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("n_write", [1, 2, 3, 5])
def test_states_after_the_last_tokens(n_write: int) -> None:
    net, x = Net(BASE), inputs(5)
    store = net.new_store()
    net.run([row(0, 5, [0], -1, tuple(range(n_write)))], store, x)
    _, states = reference.gated_delta_net(BASE, net.arrays, x.astype(np.float64), *zeros(BASE))
    for back in range(n_write):
        conv, delta = states[4 - back]
        host = store.snapshot_state(back).to_host()[0]
        assert_close(host[: BASE.conv_state_size], conv.reshape(-1))
        assert_close(host[BASE.conv_state_size :], delta.reshape(-1))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("cuts", [[1], [2, 3], [31, 32, 33, 64], list(range(1, 70))])
def test_any_split_gives_the_same_bits(cuts: list[int]) -> None:
    net, x = Net(replace(BASE, ssm_state_size=128)), inputs(70)
    whole = net.run([row(0, 70, [0], -1, (0,))], net.new_store(), x)
    store, pieces, state = net.new_store(), [], -1
    for first, end in zip([0, *cuts], [*cuts, 70], strict=True):
        target = 1 if state == 0 else 0
        pieces.append(
            net.run([row(first, end - first, [0], state, (target,))], store, x[first:end])
        )
        state = target
    assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_a_row_does_not_see_its_neighbours(n_threads: int) -> None:
    net = Net(BASE, n_threads)
    lengths = [3, 1, 70, 1, 12]
    xs = [inputs(n, seed=n + i) for i, n in enumerate(lengths)]
    rows = [row(0, n, [0], -1, (i,)) for i, n in enumerate(lengths)]
    store = net.new_store()
    together = net.run(rows, store, np.concatenate(xs))
    alone_net, at = Net(BASE, 1), 0
    for i, (x, r) in enumerate(zip(xs, rows, strict=True)):
        alone_store = alone_net.new_store()
        alone = alone_net.run([r], alone_store, x)
        assert np.array_equal(together[at : at + len(x)], alone)
        kept, expected = store.snapshot_state(i).to_host(), alone_store.snapshot_state(i).to_host()
        assert np.array_equal(kept, expected)
        at += len(x)
