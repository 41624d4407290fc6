"""Two layers of a model, and each of their operations measured alone, on any backend."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from gguf_hybrid.backend.base import Backend, Floats, Store, StoreSpec
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.demo import demo_path
from gguf_hybrid.errors import GGUFError
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.step import BLOCK, Row, Step
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.layout import check_tensors, expected_tensors
from gguf_hybrid.weights.random_tensor import random_tensor
from gguf_hybrid.weights.reader import TensorInfo, open_gguf

LAYER_OPERATIONS = ("gated_delta_net", "attend", "feed_forward", "logits")
N_TIMES = 8
"""Repetitions of the operation inside one step."""
RESOLUTION = 1e-7
"""Seconds; what an operation lost in the noise of its step counts as."""
CACHE_SPREAD = 0.5
STATE_SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class Source:
    """A model of one recurrent and one attention layer."""

    name: str
    config: ModelConfig
    tensors: Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of one operation, and what the step computed."""

    seconds: float
    values: Floats

    def difference(self, other: "Result") -> float:
        """Largest difference relative to the largest value of ``other``."""
        scale = max(float(np.abs(other.values).max()), 1e-30)
        return float(np.abs(self.values - other.values).max()) / scale


def of_file(path: str) -> Source:
    """The first recurrent and the first attention layer of a file, its embedding and its head."""
    file = open_gguf(path)
    whole = ModelConfig.from_metadata(file.metadata, file.tensors, path)
    tensors = check_tensors(whole, file.tensors, path).trunk
    if not whole.delta_net_layers or not whole.attention_layers:
        raise GGUFError(f"{path}: bench kernels wants a recurrent and an attention layer")
    layers = (whole.delta_net_layers[0], whole.attention_layers[0])
    kept = {name: t for name, t in tensors.items() if not name.startswith("blk.")}
    for new, old in enumerate(layers):
        for name, tensor in tensors.items():
            if name.startswith(f"blk.{old}."):
                renamed = name.replace(f"blk.{old}.", f"blk.{new}.", 1)
                kept[renamed] = replace(tensor, name=renamed)
    return Source(path, _two_layers(whole), kept)


def random_35b_a3b() -> Source:
    """Sizes of Qwen3.6-35B-A3B; Q4_K, the head and the experts' down products in Q6_K."""
    file = open_gguf(demo_path())
    config = replace(
        _two_layers(ModelConfig.from_metadata(file.metadata, file.tensors)),
        n_vocab=248320,
        n_embd=2048,
        n_head=16,
        n_head_kv=2,
        head_dim=256,
        attention_scale=256**-0.5,
        n_rot=64,
        rope_sections=(11, 11, 10, 0),
        ssm_group_count=16,
        ssm_time_step_rank=32,
        ssm_state_size=128,
        n_expert=256,
        n_expert_used=8,
        n_ff_exp=512,
        n_ff_shexp=512,
    )
    rng = np.random.default_rng(1)
    tensors = {
        name: random_tensor(name, _type(name, shape), shape, rng)
        for name, shape in expected_tensors(config).items()
    }
    return Source("random weights in the sizes of Qwen3.6-35B-A3B", config, tensors)


def _two_layers(config: ModelConfig) -> ModelConfig:
    return replace(config, n_layer=2, n_nextn=0, recurrent_layers=(True, False))


def _type(name: str, shape: tuple[int, ...]) -> GGMLType:
    if len(shape) == 1 or name.endswith(("ssm_conv1d.weight", "ffn_gate_inp.weight")):
        return GGMLType.F32
    six_bit = name == "output.weight" or "ffn_down" in name
    return GGMLType.Q6_K if six_bit else GGMLType.Q4_K


class Bench:
    """A loaded source with random state and cache."""

    def __init__(self, source: Source, backend: Backend, n_rows: int, context: int) -> None:
        self.backend, self._context = backend, context
        self._model = Qwen35(source.config, source.tensors, backend)
        self._per_row = -(-(context + 1) // BLOCK)
        self._store = self._model.new_store(StoreSpec(2 * n_rows, n_rows * self._per_row))
        _fill(self._store, source.config)
        rng = np.random.default_rng(2)
        self._tokens = rng.integers(0, source.config.n_vocab, n_rows).astype(np.int32)

    def measure(self, operation: str, rows: int, repeat: int) -> Result:
        """The median over ``repeat`` steps, after one to warm up; ``logits`` with the embedding and
        the final norm."""
        values = self._step(operation, rows, 1)
        if operation == "logits":
            return Result(median(self._timed("logits", rows, 0) for _ in range(repeat)), values)
        times = []
        for _ in range(repeat):
            with_it = self._timed(operation, rows, N_TIMES)
            times.append(with_it - self._timed(operation, rows, 0))
        return Result(max(median(times) / N_TIMES, RESOLUTION), values)

    def _timed(self, operation: str, rows: int, n_times: int) -> float:
        began = time.perf_counter()
        self._step(operation, rows, n_times)
        return time.perf_counter() - began

    def _step(self, operation: str, rows: int, n_times: int) -> Floats:
        """Run embed, the operation, and the end of the step: logits or the final norm."""
        backend, model = self.backend, self._model
        plan = backend.begin(Step(tuple(self._row(i) for i in range(rows))), self._store)
        x: Any = backend.embed(model.token_embd, plan)
        if operation == "logits":
            return backend.logits(model.head, x, plan).copy()
        for _ in range(n_times):
            if operation == "gated_delta_net":
                x = backend.gated_delta_net(model.blk[0], x, plan, 0)
            elif operation == "attend":
                x = backend.attend(model.blk[1], x, plan, 0)
            else:
                x = backend.feed_forward(model.blk[0], x, plan)
        return backend.hidden(model.head, x, plan).copy()

    def _row(self, i: int) -> Row:
        blocks = np.arange(i * self._per_row, (i + 1) * self._per_row, dtype=np.int32)
        return Row(
            i, self._context, self._tokens[i : i + 1], 2 * i, (2 * i + 1,), blocks, n_logits=1
        )


def _fill(store: Store, config: ModelConfig) -> None:
    """Every state row and KV block with the same random values on every backend."""
    rng = np.random.default_rng(3)
    size = config.conv_state_size + config.delta_state_size
    shape = (len(config.delta_net_layers), size)
    for row in range(store.spec.n_state_rows):
        store.load_state(STATE_SPREAD * rng.standard_normal(shape, np.float32), row)
    for block in range(store.spec.n_blocks):
        halves = CACHE_SPREAD * rng.standard_normal(store.block_nbytes // 2, np.float32)
        store.write_block(block, halves.astype(np.float16).view(np.uint8))
