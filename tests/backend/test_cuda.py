"""The CUDA backend without CUDA: its launches, buffers and bookkeeping over the CPU shim.

Two layers of a tiny model, so that lanes run one after another in bearable time. On a GPU the same
steps are checked by the record in docs/bench.
"""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf_hybrid.metal import shim
from gguf_hybrid.metal.host_device import HostDevice

from gguf_hybrid.backend.base import GIVEN
from gguf_hybrid.backend.cuda import CudaBackend
from gguf_hybrid.backend.cuda_delta import segments
from gguf_hybrid.backend.mlx import MlxBackend
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.demo import __file__ as demo
from gguf_hybrid.memory.store import Store, StoreSpec
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.sampling.device import Choice, common_chain
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.step import CHUNK, ZERO_STATE, Row, Step
from gguf_hybrid.weights.layout import check_tensors
from gguf_hybrid.weights.reader import open_gguf

pytestmark = pytest.mark.skipif(shim.compiler() is None, reason="no C++ compiler")

MODEL = Path(demo).with_name("qwen35moe-tiny-Q4_K_M.gguf")
LAYERS = (2, 3)
"""A Gated DeltaNet layer and an attention layer."""
TOLERANCE = 0.03
"""Relative distance of logits: decode rounds activations to int8."""
PROMPT_TOLERANCE = 0.01
"""The same for prompts, which round to f16."""

Models = tuple[Qwen35, Qwen35]


@pytest.fixture(scope="module")
def models() -> Models:
    """The same layers on MLX and on CUDA."""
    file = open_gguf(MODEL)
    whole = ModelConfig.from_metadata(file.metadata, file.tensors)
    kinds = tuple(whole.recurrent_layers[layer] for layer in LAYERS)
    config = replace(whole, n_layer=len(LAYERS), recurrent_layers=kinds)
    tensors = {}
    for name, tensor in check_tensors(whole, file.tensors).trunk.items():
        block, layer, *rest = name.split(".", 2)
        if block != "blk":
            tensors[name] = tensor
        elif int(layer) in LAYERS:
            tensors[".".join([block, str(LAYERS.index(int(layer))), *rest])] = tensor
    reference = Qwen35(config, tensors, MlxBackend(config, mx.cpu))
    return reference, Qwen35(config, tensors, CudaBackend(config, HostDevice(poison=255)))  # type: ignore[arg-type]


def _row(
    seq_id: int, start: int, tokens: list[int], read: int, *writes: int, is_decode: bool = False
) -> Row:
    blocks = np.array([seq_id], np.int32)
    ids = np.array(tokens, np.int32)
    return Row(seq_id, start, ids, read, writes, blocks, 1, is_decode)


def _distance(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def _state(store: Store, row: int) -> np.ndarray:
    return store.snapshot_state(row).to_host()


def test_steps_agree_with_the_reference_and_rows_do_not_meet(models: Models) -> None:
    reference, model = models
    wanted_store, store = (m.new_store(StoreSpec(6, 3)) for m in models)
    steps = [
        Step((_row(0, 0, [5, 9], ZERO_STATE, 0), _row(1, 0, [77], ZERO_STATE, 1))),
        Step((_row(0, 2, [15], 0, 2, is_decode=True), _row(1, 1, [7], 1, 3, is_decode=True))),
    ]
    for step, tolerance in zip(steps, (PROMPT_TOLERANCE, TOLERANCE), strict=True):
        wanted, got = reference.forward(step, wanted_store), model.forward(step, store).copy()
        assert _distance(got, wanted) < tolerance
    alone = model.forward(Step((_row(1, 1, [7], 1, 4, is_decode=True),)), store)
    assert np.array_equal(alone[0], got[1])


def test_a_prompt_may_be_cut_and_have_company(models: Models) -> None:
    """Whole, cut at a chunk's end, and with its last token as a row of its own: the same bits. So
    are the states that the whole one leaves, one of them inside a chunk."""
    _, model = models
    tokens = np.random.default_rng(4).integers(0, model.config.n_vocab, CHUNK + 2).tolist()
    store = model.new_store(StoreSpec(10, 4))

    def run(*rows: Row) -> np.ndarray:
        return model.forward(Step(rows), store).copy()

    whole = run(_row(0, 0, tokens, ZERO_STATE, 0, 6, 7, 8))[0]
    run(_row(1, 0, tokens[:CHUNK], ZERO_STATE, 1))
    end = run(_row(1, CHUNK, tokens[CHUNK:], 1, 2), _row(2, 0, [3], ZERO_STATE, 3, is_decode=True))[
        0
    ]
    run(_row(1, CHUNK, tokens[CHUNK:-1], 1, 4))
    last = run(_row(1, CHUNK + 1, tokens[-1:], 4, 5))[0]
    for logits, row in ((end, 2), (last, 5)):
        assert np.array_equal(logits, whole)
        assert np.array_equal(_state(store, row), _state(store, 0))
    assert np.array_equal(store.read_block(1), store.read_block(0))
    run(_row(3, 0, tokens[: CHUNK - 1], ZERO_STATE, 9))
    for row, kept in ((4, 6), (1, 7), (9, 8)):
        assert np.array_equal(_state(store, row), _state(store, kept))


def test_a_prompt_leaves_the_states_of_its_last_tokens(models: Models) -> None:
    reference, model = models
    wanted_store, store = (m.new_store(StoreSpec(6, 1)) for m in models)
    step = Step((_row(0, 0, [5, 9, 77], ZERO_STATE, 0, 1, 2),))
    reference.forward(step, wanted_store)
    model.forward(step, store)
    for age in range(3):
        assert _distance(_state(store, age), _state(wanted_store, age)) < PROMPT_TOLERANCE
        model.forward(Step((_row(0, 0, [5, 9, 77][: 3 - age], ZERO_STATE, 3),)), store)
        assert np.array_equal(_state(store, 3), _state(store, age))


def test_hidden_states_agree_with_the_reference(models: Models) -> None:
    """Two prompts, one of a single token; a piece of a prompt gives the same bits."""
    reference, model = models
    wanted_store, store = (m.new_store(StoreSpec(4, 2)) for m in models)
    step = Step((_row(0, 0, [5, 9, 77], ZERO_STATE, 0), _row(1, 0, [12], ZERO_STATE, 1)))
    got = model.hidden(step, store)
    assert got.shape == (4, model.config.n_embd)
    assert _distance(got, reference.hidden(step, wanted_store)) < PROMPT_TOLERANCE
    head = model.hidden(Step((_row(0, 0, [5, 9], ZERO_STATE, 2),)), store)
    tail = model.hidden(Step((_row(0, 2, [77], 2, 3),)), store)
    assert np.array_equal(np.concatenate([head, tail]), got[:3])


def test_segments_cover_a_row_and_leave_the_states_that_are_wanted() -> None:
    for start, n, n_writes in ((0, 1, 1), (63, 2, 1), (64, 64, 1), (10, 5000, 1), (0, 128, 3),
                               (5, 200, 67), (0, 64, 64), (60, 3, 3)):  # fmt: skip
        parts = list(segments(start, n, n_writes))
        own = [p for p in parts if not p.is_aside]
        assert [p.first for p in own] == [0, *(p.end for p in own[:-1])] and own[-1].end == n
        assert all((start + p.first) % CHUNK == p.n % CHUNK == 0 for p in own if p.in_chunks)
        ends = {p.end for p in own if p.in_chunks}
        ends |= {e for p in parts if not p.in_chunks for e in range(p.first + 1, p.end + 1)}
        assert set(range(n - n_writes + 1, n + 1)) <= ends
        assert n_writes > 1 or not any(p.is_aside for p in parts)


def _chooser(number: float) -> Choice:
    chain = common_chain(SamplingParams(top_k=5, temperature=3.0), ())
    assert chain is not None
    return Choice(chain, (), number)


def test_a_launched_step_chooses_and_goes_on_without_the_host(models: Models) -> None:
    """Two launches in a row, the second fed by the first, equal forward steps with a sampler on
    the host; a row that left in between and one without a choice do not matter."""
    _, model = models
    assert model.n_sampled_rows >= 3
    stores = [model.new_store(StoreSpec(9, 3)) for _ in range(2)]
    first = Step(tuple(_row(s, 0, [40 + s], ZERO_STATE, 3 * s, is_decode=True) for s in range(3)))
    logits = model.forward(first, stores[0]).copy()
    second = [_row(s, 1, [0], 3 * s, 3 * s + 1, is_decode=True) for s in (2, 0)]
    running = model.launch(first, stores[1], [_chooser(0.7), None, _chooser(0.2)], [GIVEN] * 3)
    after = model.launch(Step(tuple(second)), stores[1], [_chooser(0.9)] * 2, [2, 0])
    picked = running.wait()
    assert np.array_equal(picked.logits, logits[1:2])
    tokens = [_drawn(logits[0], 0.7), picked.tokens[1], _drawn(logits[2], 0.2)]
    assert picked.tokens == tokens
    told = [replace(row, tokens=np.array([tokens[row.seq_id]], np.int32)) for row in second]
    logits = model.forward(Step(tuple(told)), stores[0])
    assert after.wait().tokens == [_drawn(row, 0.9) for row in logits]


def _drawn(logits: np.ndarray, number: float) -> int:
    best = np.argsort(-logits, kind="stable")[:5]
    weights = np.exp((logits[best] - logits[best[0]]) / 3.0)
    kept = best[(np.cumsum(weights**3) - weights**3 < 0.95 * (weights**3).sum())
                & (weights**3 >= 0.05)]  # fmt: skip
    sums = np.cumsum(weights[: len(kept)])
    return int(kept[np.searchsorted(sums, number * sums[-1], side="right")])


def test_a_step_does_not_move_what_an_earlier_graph_uses(models: Models) -> None:
    """One row, more rows, one row again: the first graph is replayed over the same buffers."""
    _, model = models
    store = model.new_store(StoreSpec(8, 4))
    single = Step((_row(0, 0, [5], ZERO_STATE, 0, is_decode=True),))
    several = [_row(s, 0, [7 + s], ZERO_STATE, 2 * s, is_decode=True) for s in range(1, 4)]
    before = model.forward(single, store).copy()
    model.forward(Step(tuple(several)), store)
    assert np.array_equal(model.forward(single, store), before)
