"""The Metal path without Metal: MLX writes the kernels' text, the CPU shim runs that very text.

What is shown: argument order, grids, shapes and types of every wrapped kernel, and that the whole
MLX backend with own kernels computes what it computes without them. Not shown: that Apple's
compiler takes the text, and any speed.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from gguf_hybrid.metal import shim
from gguf_hybrid.metal.apple import Kernels
from support import metal_stand_in
from support.metal_stand_in import StandIn
from support.metal_text import faults, parsed

from gguf_hybrid.backend.kernel_choice import SWITCHES, KernelChoice
from gguf_hybrid.backend.mlx import MlxBackend
from gguf_hybrid.backend.mlx_linear import linear_of
from gguf_hybrid.backend.mlx_own import OwnOperations, RawLinear, raw_of
from gguf_hybrid.backend.mlx_stock import DeltaWeights, StockOperations
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.demo import demo_path
from gguf_hybrid.errors import BackendError
from gguf_hybrid.memory.store import StoreSpec
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.step import ZERO_STATE, Row, Step
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.layout import check_tensors
from gguf_hybrid.weights.random_tensor import random_tensor
from gguf_hybrid.weights.reader import open_gguf

pytestmark = pytest.mark.skipif(shim.compiler() is None, reason="no C++ compiler")

N_LAYER = 4
TOLERANCE = 2e-5
"""Of logits, relative to the largest: float32 sums in another order."""


@pytest.fixture(autouse=True)
def metal_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    mx.set_default_device(mx.Device(mx.cpu))
    monkeypatch.setattr(mx.fast, "metal_kernel", StandIn)
    metal_stand_in.launched.clear()
    yield


def _config() -> ModelConfig:
    file = open_gguf(demo_path())
    return ModelConfig.from_metadata(file.metadata, file.tensors)


def _row(seq_id: int, start: int, tokens: list[int], read: int, write: int) -> Row:
    blocks = np.array([seq_id], np.int32)
    return Row(seq_id, start, np.array(tokens, np.int32), read, (write,), blocks, 1)


def _normal(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(len(shape)).standard_normal(shape, np.float32))


def _error(got: mx.array, wanted: mx.array) -> float:
    return float(mx.abs(got - wanted).max() / mx.abs(wanted).max())


def test_the_backend_with_own_kernels_agrees_with_stock_mlx() -> None:
    file, whole = open_gguf(demo_path()), _config()
    tensors = dict(check_tensors(whole, file.tensors).trunk)
    config = replace(whole, n_layer=N_LAYER, recurrent_layers=whole.recurrent_layers[:N_LAYER])
    reference = Qwen35(config, tensors, MlxBackend(config, mx.cpu))
    backend = MlxBackend(config, mx.cpu, KernelChoice.parse("on"))
    assert backend.own.names == set(SWITCHES)
    assert backend.weight_nbytes() < 0.8 * reference.backend.weight_nbytes()
    model = Qwen35(config, tensors, backend)
    wanted_store, store = (m.new_store(StoreSpec(6, 3)) for m in (reference, model))
    metal_stand_in.launched.clear()
    steps = [
        Step((_row(0, 0, [5, 9], ZERO_STATE, 0), _row(1, 0, [77], ZERO_STATE, 1))),
        Step((_row(0, 2, [15], 0, 2), _row(1, 1, [7], 1, 3))),
    ]
    for step in steps:
        wanted, got = reference.forward(step, wanted_store), model.forward(step, store)
        assert np.abs(got - wanted).max() < TOLERANCE * np.abs(wanted).max()
    alone = model.forward(Step((_row(1, 1, [7], 1, 4),)), store)
    assert np.array_equal(alone[0], got[1])
    bodies = {name.removeprefix("ggh_").rsplit("_", 1)[0] for name, _ in metal_stand_in.launched}
    assert bodies == {
        *("raw_matvec", "raw_gate_up", "raw_down", "embed"),
        *("top_experts", "delta_rows", "attend_blocks", "attend_join"),
    }
    for source in {source for _, source in metal_stand_in.launched}:
        assert faults(source) == []
        assert not parsed(source)


@pytest.mark.parametrize("length", [5, 8 * 256, 8 * 256 + 70])
def test_attention_over_more_blocks_than_a_launch_takes(length: int) -> None:
    config = _config()
    stock, own = StockOperations(config, False), OwnOperations(config, Kernels())
    n_blocks = -(-length // 256)
    shape = (n_blocks, 256, config.n_head_kv, config.head_dim)
    keys, values = (list(_normal(*shape).astype(mx.float16) * s) for s in (1, 2))
    q = _normal(config.n_head, config.head_dim)
    wanted = stock.attend(q, keys, values, length)
    assert _error(own.attend(q, keys, values, length), wanted) < 1e-5


@pytest.mark.parametrize("n_rows", [1, 9, 65])
def test_products_of_any_number_of_rows(n_rows: int) -> None:
    """Beyond 64 rows the weights are decoded, in pieces, for a stock product."""
    tensor = random_tensor("w", GGMLType.Q6_K, (36, 256), np.random.default_rng(2))
    x = _normal(n_rows, 256)
    wanted = linear_of(tensor)(x)
    assert _error(RawLinear(Kernels(), raw_of(tensor))(x), wanted) < 1e-5


@pytest.mark.parametrize("tiled", [True, False])
def test_fused_forms_of_mlx_agree_with_plain_ones(tiled: bool) -> None:
    """What stock MLX computes with on Metal: attention, and the delta rule of covered heads."""
    c = replace(
        _config(),
        ssm_state_size=128,
        ssm_group_count=8,
        ssm_time_step_rank=16,
        tiled_v_heads=tiled,
    )
    plain, fused = StockOperations(c, False), StockOperations(c, True)
    w = DeltaWeights(_normal(c.conv_dim, 4), _normal(16), -mx.exp(_normal(16)))
    args = (_normal(2, c.conv_dim), _normal(2, 16), _normal(2, 16), w, _normal(2, 3, c.conv_dim))
    state = _normal(2, 16, 128, 128)
    for got, wanted in zip(
        fused.delta_step(*args, state), plain.delta_step(*args, state), strict=True
    ):
        assert _error(got, wanted) < 1e-5
    blocks = [_normal(256, c.n_head_kv, c.head_dim).astype(mx.float16)]
    q = _normal(c.n_head, c.head_dim)
    wanted = plain.attend(q, blocks, blocks, 77)
    assert _error(fused.attend(q, blocks, blocks, 77), wanted) < 1e-5


class Wrong(StandIn):
    def __call__(self, **launch: object) -> list[mx.array]:
        first, *rest = super().__call__(**launch)  # type: ignore[arg-type]
        return [first * 1.01, *rest]


def test_a_kernel_that_computes_wrongly_here_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mx.fast, "metal_kernel", Wrong)
    with caplog.at_level(logging.WARNING):
        backend = MlxBackend(_config(), mx.cpu, KernelChoice.parse("-matvec,-gate_up,-down"))
    assert "attend" not in backend.own.names
    assert "own kernel attend differs from stock MLX by" in caplog.text
    with pytest.raises(BackendError, match="GGUF_HYBRID_KERNELS: the own kernel attend differs"):
        MlxBackend(_config(), mx.cpu, KernelChoice.parse("off,attend"))


def test_without_metal_a_named_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.fast, "metal_kernel", metal_stand_in.real_metal_kernel)
    with pytest.raises(BackendError, match="the own kernel attend does not run here"):
        MlxBackend(_config(), mx.cpu, KernelChoice.parse("off,attend"))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("const device uchar* rows[R]", "const uchar* rows[R]", "pointer without"),
        ("thread float (&out)[R][NB]", "float (&out)[R][NB]", "reference without"),
        ("float acc[R][NB];", "double acc[R][NB];", "foreign word double"),
        ("thread Unit& w", "Unit& w", "reference without"),
    ],
)
def test_faulty_text_is_found(old: str, new: str, fault: str) -> None:
    tensor = random_tensor("w", GGMLType.Q6_K, (36, 256), np.random.default_rng(2))
    RawLinear(Kernels(), raw_of(tensor))(_normal(1, 256))
    source = metal_stand_in.launched[-1][1]
    assert old in source and faults(source) == []
    assert any(fault in found for found in faults(source.replace(old, new)))
