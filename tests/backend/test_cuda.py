"""The CUDA backend without CUDA: its launches, buffers and bookkeeping over the CPU shim.

Half of a tiny model, so that lanes run one after another in bearable time. On a GPU the same steps
are checked by the record in docs/bench.
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
from gguf_hybrid.backend.mlx import MlxBackend
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.demo import __file__ as demo
from gguf_hybrid.memory.store import StoreSpec
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.sampling.device import Choice, common_chain
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.step import ZERO_STATE, Row, Step
from gguf_hybrid.weights.layout import check_tensors
from gguf_hybrid.weights.reader import open_gguf

pytestmark = pytest.mark.skipif(shim.compiler() is None, reason="no C++ compiler")

MODEL = Path(demo).with_name("qwen35moe-tiny-Q4_K_M.gguf")
N_LAYER = 4
TOLERANCE = 0.03
"""Relative distance of logits: decode rounds activations to int8."""


def _row(seq_id: int, start: int, tokens: list[int], read: int, write: int) -> Row:
    blocks = np.array([seq_id], np.int32)
    return Row(seq_id, start, np.array(tokens, np.int32), read, (write,), blocks, 1)


def _chooser(number: float) -> Choice:
    chain = common_chain(SamplingParams(top_k=5, temperature=3.0), ())
    assert chain is not None
    return Choice(chain, (), number)


def test_a_launched_step_chooses_and_goes_on_without_the_host() -> None:
    """Two launches in a row, the second fed by the first, equal forward steps with a sampler on
    the host; a row that left in between and one without a choice do not matter."""
    model, _ = _model()
    assert model.n_sampled_rows >= 3
    stores = [model.new_store(StoreSpec(9, 3)) for _ in range(2)]
    first = Step(tuple(_row(s, 0, [40 + s], ZERO_STATE, 3 * s) for s in range(3)))
    logits = model.forward(first, stores[0]).copy()
    second = [_row(s, 1, [0], 3 * s, 3 * s + 1) for s in (2, 0)]
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


def _model() -> tuple[Qwen35, Qwen35]:
    """Half of the demo model on the shim, and on the reference."""
    file = open_gguf(MODEL)
    whole = ModelConfig.from_metadata(file.metadata, file.tensors)
    tensors = dict(check_tensors(whole, file.tensors).trunk)
    config = replace(whole, n_layer=N_LAYER, recurrent_layers=whole.recurrent_layers[:N_LAYER])
    reference = Qwen35(config, tensors, MlxBackend(config, mx.cpu))
    device = HostDevice(poison=255)
    return Qwen35(config, tensors, CudaBackend(config, device)), reference  # type: ignore[arg-type]


def test_steps_agree_with_the_reference_and_rows_do_not_meet() -> None:
    model, reference = _model()
    wanted_store, store = (m.new_store(StoreSpec(6, 3)) for m in (reference, model))
    steps = [
        Step((_row(0, 0, [5, 9], ZERO_STATE, 0), _row(1, 0, [77], ZERO_STATE, 1))),
        Step((_row(0, 2, [15], 0, 2), _row(1, 1, [7], 1, 3))),
    ]
    for step in steps:
        wanted, got = reference.forward(step, wanted_store), model.forward(step, store).copy()
        assert np.linalg.norm(got - wanted) < TOLERANCE * np.linalg.norm(wanted)
    alone = model.forward(Step((_row(1, 1, [7], 1, 4),)), store)
    assert np.array_equal(alone[0], got[1])
