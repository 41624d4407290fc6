"""Before a model is loaded: memory plan, rope flags, backend choice, clear refusals."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguf_hybrid import runtime
from gguf_hybrid.backend import select
from gguf_hybrid.backend.rope import rope_of
from gguf_hybrid.demo import demo_path
from gguf_hybrid.errors import (
    BackendError,
    ConfigError,
    GGUFError,
    GgufHybridError,
    MemoryLimitError,
)
from gguf_hybrid.fit import Demand, fitting_context
from gguf_hybrid.runtime import OpenModel, Runtime, plan_memory
from gguf_hybrid.runtime_config import RopeConfig, RuntimeConfig, SpeculativeConfig

DEMO = RuntimeConfig(model=str(demo_path()))
GIB = 1 << 30
POOLING_KEY = "qwen35moe.pooling_type"


def test_context_is_fitted_to_the_free_memory() -> None:
    demand = Demand(weights=2 * GIB, states=GIB, per_token=1 << 20)
    assert fitting_context(demand, 1 << 18, 5 * GIB, fit_ctx=512) == 2048
    assert fitting_context(demand, 1024, 5 * GIB, fit_ctx=512) == 1024


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    demand = Demand(weights=2 * GIB, states=GIB, per_token=1 << 20)
    with pytest.raises(MemoryLimitError, match=r"2\.00 GiB of weights.*3\.00 GiB are free"):
        fitting_context(demand, 4096, 3 * GIB, fit_ctx=4096)


def test_slots_that_do_not_fit_are_refused_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "free_memory", lambda config: 64 << 20)
    config = replace(DEMO, n_ctx=4096, n_parallel=256)
    with pytest.raises(MemoryLimitError, match="fewer slots: -np"):
        plan_memory(OpenModel.open(config), config)


@pytest.mark.parametrize(("free_mib", "budget_mib"), [(64 << 10, 8192), (1024 + 200, 100)])
def test_a_gpu_keeps_checkpoints_in_what_the_model_leaves(
    monkeypatch: pytest.MonkeyPatch, free_mib: int, budget_mib: int
) -> None:
    monkeypatch.setattr(runtime, "wants_cpu", lambda config: False)
    monkeypatch.setattr(runtime, "free_memory", lambda config: free_mib << 20)
    demand = Demand(weights=60 << 20, states=40 << 20, per_token=0)
    monkeypatch.setattr(runtime, "memory_demand", lambda *args: demand)
    opened = OpenModel.open(DEMO)
    limits = plan_memory(opened, replace(DEMO, n_ctx=1024))
    assert runtime.cache_budget(opened, DEMO, limits) == budget_mib << 20


def test_auto_slots_share_the_whole_context() -> None:
    limits = plan_memory(OpenModel.open(DEMO), replace(DEMO, n_ctx=2048))
    assert (limits.n_slots, limits.n_ctx, limits.kv_unified) == (4, 2048, True)


def test_yarn_flags_stretch_the_context_and_the_angles() -> None:
    plain = OpenModel.open(DEMO).config
    rope = RopeConfig(scaling="yarn", scale=4.0, yarn_orig_ctx=4096)
    long = OpenModel.open(replace(DEMO, rope=rope)).config
    assert long.n_ctx_train == 4 * 4096
    fast, slow = rope_of(plain).inv_freq, rope_of(long).inv_freq
    assert slow[0] == pytest.approx(fast[0])
    assert slow[-1] == pytest.approx(fast[-1] / 4)
    assert rope_of(long).magnitude == pytest.approx(1.0 + 0.1 * 1.3862943611)


def test_linear_scaling_is_applied() -> None:
    plain, config = OpenModel.open(DEMO).config, replace(DEMO, rope=RopeConfig(scale=2.0))
    stretched = OpenModel.open(config).config
    assert rope_of(stretched).inv_freq == pytest.approx(rope_of(plain).inv_freq / 2)


def test_overridden_keys_are_read() -> None:
    key = "qwen35moe.rope.freq_base"
    config = replace(DEMO, override_kv={key: 5000.0})
    assert OpenModel.open(config).config.rope_freq_base == 5000.0


def test_drafting_without_a_next_token_block_is_refused(tmp_path: Path) -> None:
    spec = SpeculativeConfig(types=("draft-mtp",))
    OpenModel.open(replace(DEMO, speculative=spec))
    override = {"qwen35moe.nextn_predict_layers": 0, "qwen35moe.block_count": 8}
    with pytest.raises(GgufHybridError):
        OpenModel.open(replace(DEMO, speculative=spec, override_kv=override))


@pytest.mark.parametrize(
    ("flags", "pooling"),
    [
        ({"embeddings": False, "pooling": "mean"}, None),
        ({"embeddings": True}, "none"),
        ({"embeddings": True, "override_kv": {POOLING_KEY: 1}}, "mean"),
        ({"embeddings": True, "override_kv": {POOLING_KEY: 2}}, "cls"),
        ({"embeddings": True, "override_kv": {POOLING_KEY: 3}}, "last"),
        ({"embeddings": True, "override_kv": {POOLING_KEY: 1}, "pooling": "last"}, "last"),
        ({"embeddings": True, "override_kv": {POOLING_KEY: 4}, "pooling": "last"}, "last"),
    ],
)
def test_pooling_is_the_flags_then_the_files(flags: dict[str, Any], pooling: str | None) -> None:
    config = replace(DEMO, **flags)
    assert Runtime(OpenModel.open(config), config).pooling == pooling


def test_a_file_that_wants_to_rank_is_refused() -> None:
    config = replace(DEMO, embeddings=True, override_kv={POOLING_KEY: 4})
    with pytest.raises(GGUFError, match="pooling_type is 4"):
        Runtime(OpenModel.open(config), config)


def test_different_cache_types_are_refused() -> None:
    config = replace(DEMO, cache_type_k="f32")
    with pytest.raises(ConfigError, match="-ctk and -ctv"):
        plan_memory(OpenModel.open(config), config)


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ([], r"no MLX backend is installed: pip install 'gguf-hybrid"),
        (["mlx-cpu", "mlx-cuda-13"], r"two MLX backends.*pip uninstall -y mlx mlx-cpu mlx-cuda-13"),
    ],
)
def test_exactly_one_mlx_backend_is_needed(
    monkeypatch: pytest.MonkeyPatch, installed: list[str], message: str
) -> None:
    monkeypatch.setattr(select, "installed_backends", lambda: installed)
    with pytest.raises(BackendError, match=message) as error:
        asyncio.run(Runtime.load(DEMO, lambda error: None))
    assert "\n" not in str(error.value)


def test_cpu_is_chosen_by_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "installed_backends", lambda: ["mlx-cuda-13"])
    assert select.wants_cpu(replace(DEMO, n_gpu_layers=0))
    assert select.wants_cpu(replace(DEMO, device="none"))
    assert not select.wants_cpu(DEMO)
    with pytest.raises(BackendError, match=re.escape("--device quantum")):
        select.wants_cpu(replace(DEMO, device="quantum"))


def test_without_the_compiled_library_mlx_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(select.library, "find", lambda: None)
    config = replace(DEMO, n_ctx=1024)

    async def name_of_backend() -> str:
        loaded = await Runtime.load(config, lambda error: None)
        name = await loaded.worker.call(lambda engine: engine._passes._model.backend.name)  # type: ignore[attr-defined]
        await loaded.close()
        return str(name)

    assert asyncio.run(name_of_backend()) == "mlx (cpu)"
    assert "no compiled CPU library" in caplog.text


def test_cuda_refuses_other_kv_types_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "own_cuda", lambda config: True)
    config = replace(DEMO, cache_type_k="f32", cache_type_v="f32")
    with pytest.raises(ConfigError, match="the CUDA kernels keep KV as f16 only"):
        plan_memory(OpenModel.open(config), config)


def test_devices_are_named_after_the_installed_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, n_gpus in (("cpu", 0), ("cuda", 1), ("metal", 1)):
        monkeypatch.setattr(runtime, "require_backend", lambda kind=kind: kind)
        assert len(runtime.list_devices()) == 1 + n_gpus
