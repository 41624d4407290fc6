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

from gguf_hybrid.backend.cuda import CudaBackend
from gguf_hybrid.backend.mlx import MlxBackend
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.demo import __file__ as demo
from gguf_hybrid.memory.store import StoreSpec
from gguf_hybrid.model.qwen35 import Qwen35
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


def test_steps_agree_with_the_reference_and_rows_do_not_meet() -> None:
    file = open_gguf(MODEL)
    whole = ModelConfig.from_metadata(file.metadata, file.tensors)
    tensors = dict(check_tensors(whole, file.tensors).trunk)
    config = replace(whole, n_layer=N_LAYER, recurrent_layers=whole.recurrent_layers[:N_LAYER])
    reference = Qwen35(config, tensors, MlxBackend(config, mx.cpu))
    model = Qwen35(config, tensors, CudaBackend(config, HostDevice(poison=255)))  # type: ignore[arg-type]
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
