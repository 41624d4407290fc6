"""The compiled CPU backend: operations are listed while the model runs, and computed in one call.

Laziness serves the server: a step crosses into C once, so the engine thread gives up and regains
the interpreter lock once a step instead of fifty times. Until ``logits`` the activations do not
exist; what passes between operations as ``x`` is the plan itself. Nothing here imports MLX.
"""

import array
import ctypes
import os
import sys
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.cpu import bindings
from gguf_hybrid.cpu.bindings import Op
from gguf_hybrid.cpu.library import Mode, Pool, check, load
from gguf_hybrid.step import BLOCK, Row, Step
from gguf_hybrid.weights.reader import TensorInfo

from . import cpu_weights
from .base import Floats, StoreSpec, Tensors
from .cpu_store import CpuStore
from .cpu_weights import Prepared
from .rope import rope_of

UNUSED_REFERENCES = 2
"""What ``sys.getrefcount`` says of an array that only its owner's attribute refers to."""


@dataclass(slots=True)
class Plan:
    """A step as the library reads it, and the operations listed so far (three integers each)."""

    step: Step
    store: CpuStore
    record: npt.NDArray[np.int32]
    n_logits: int
    ops: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CpuBlock:
    """A block's two operations."""

    mixer: Prepared
    feed_forward: Prepared


@dataclass(frozen=True, slots=True)
class CpuHead:
    """``output`` norms and multiplies in the library; ``norm`` float32 [n_embd], for embeddings."""

    norm: Floats
    output: Prepared


class CpuBackend:
    """``gguf_hybrid.backend.base.Backend`` over the compiled library.

    ``n_threads`` computes steps of single tokens, ``n_threads_batch`` steps that hold longer rows
    (-1: every processor this process may use, and the same as ``n_threads``). Raises BackendError
    for a model whose sizes the kernels do not support.
    """

    def __init__(
        self,
        config: ModelConfig,
        n_threads: int = -1,
        n_threads_batch: int = -1,
        arithmetic: str = "fast",
    ) -> None:
        self.config = config
        self.arithmetic = arithmetic
        self.n_threads = n_threads if n_threads > 0 else _n_processors()
        self.n_threads_batch = n_threads_batch if n_threads_batch > 0 else self.n_threads
        library = load()
        self.kernel_types = library.types()
        self.name = f"cpu ({library.variant}, {arithmetic}, {self.n_threads} threads)"
        self._limit = max(self.n_threads, self.n_threads_batch)
        self._pool = Pool(library, self._limit)
        self._c = bindings.declare(library.c)
        self._model = self._create_model(Mode[arithmetic.upper()])
        self._prepared: list[Prepared] = []
        self._logits = np.empty((0, config.n_vocab), np.float32)

    def close(self) -> None:
        """Frees the library's memory and threads. The backend cannot be used afterwards."""
        self._c.ggh_model_destroy(self._model)
        self._pool.close()

    def _create_model(self, mode: Mode) -> int:
        rope = rope_of(self.config)
        sizes = bindings.Sizes(
            **{name: getattr(self.config, name) for name in bindings.SIZES + bindings.NUMBERS},
            rope_magnitude=rope.magnitude,
            rope_inv_freq=rope.inv_freq.ctypes.data,
        )
        model = ctypes.c_void_p()
        status = self._c.ggh_model_create(self._pool.handle, mode, sizes, ctypes.byref(model))
        check(status, f"{self.name}: sizes of this model")
        assert model.value is not None
        return model.value

    # -- weights ------------------------------------------------------------------------------

    def prepare_embedding(self, token_embd: TensorInfo) -> Prepared:
        return self._keep(cpu_weights.embedding(token_embd), token_embd.name)

    def prepare_block(self, layer: int, tensors: Tensors) -> CpuBlock:
        recurrent = self.config.recurrent_layers[layer]
        mixer = cpu_weights.mixer(self.config, recurrent, tensors)
        feed_forward = cpu_weights.feed_forward(tensors)
        return CpuBlock(
            self._keep(mixer, f"the mixer of block {layer}"),
            self._keep(feed_forward, f"the feed-forward of block {layer}"),
        )

    def prepare_head(
        self, output_norm: TensorInfo, output: TensorInfo, embedding: Prepared
    ) -> CpuHead:
        prepared = self._keep(cpu_weights.head(output_norm, output), output.name)
        return CpuHead(output_norm.data.view(np.float32), prepared)

    def weight_nbytes(self) -> int:
        return cpu_weights.memory_nbytes(self._prepared)

    def _keep(self, prepared: Prepared, what: str) -> Prepared:
        status = self._c.ggh_model_check(self._model, prepared.op, prepared.address)
        check(status, f"{self.name}: {what}")
        self._prepared.append(prepared)
        return prepared

    # -- one step -----------------------------------------------------------------------------

    def new_store(self, spec: StoreSpec) -> CpuStore:
        return CpuStore(self.config, spec)

    def begin(self, step: Step, store: CpuStore) -> Plan:
        record: list[int] = [len(step.rows)]
        n_logits = 0
        for row in step.rows:
            record += _row_record(row)
            n_logits += row.n_logits
            store.commit(row.start, row.end, row.blocks)
        return Plan(step, store, np.array(record, np.int32), n_logits)

    def embed(self, embedding: Prepared, plan: Plan) -> Plan:
        plan.ops += (Op.EMBED, 0, embedding.address)
        return plan

    def gated_delta_net(self, block: CpuBlock, x: Plan, plan: Plan, index: int) -> Plan:
        plan.ops += (Op.DELTA_NET, index, block.mixer.address)
        return plan

    def attend(self, block: CpuBlock, x: Plan, plan: Plan, index: int) -> Plan:
        plan.ops += (Op.ATTEND, index, block.mixer.address)
        return plan

    def feed_forward(self, block: CpuBlock, x: Plan, plan: Plan) -> Plan:
        plan.ops += (block.feed_forward.op, 0, block.feed_forward.address)
        return plan

    def logits(self, head: CpuHead, x: Plan, plan: Plan) -> Floats:
        plan.ops += (Op.LOGITS, 0, head.output.address)
        logits = self._logits_buffer(plan.n_logits)
        self._run(plan, logits)
        return logits

    def hidden(self, head: CpuHead, x: Plan, plan: Plan) -> Floats:
        """The norm is one pass over a few rows: left to NumPy, with sums in float64."""
        values = self.evaluate(plan)
        squares = np.square(values, dtype=np.float64).mean(axis=-1, keepdims=True)
        values *= (1.0 / np.sqrt(squares + self.config.rms_eps)).astype(np.float32)
        values *= head.norm
        return values

    def undo(self, plan: Plan) -> None:
        """Nothing to do: cells and rows that were not committed are scratch."""

    def load(self, values: Floats, plan: Plan) -> Plan:
        """Activations from outside, float32 [n_tokens, n_embd], C-contiguous; kept by the caller
        until the step is evaluated."""
        plan.ops += (Op.LOAD, 0, values.ctypes.data)
        return plan

    def evaluate(self, plan: Plan) -> Floats:
        """Run the operations listed so far: the activations, float32 [n_tokens, n_embd]."""
        values = np.empty((plan.step.n_tokens, self.config.n_embd), np.float32)
        plan.ops += (Op.STORE, 0, values.ctypes.data)
        self._run(plan, self._logits_buffer(0))
        return values

    def _run(self, plan: Plan, logits: Floats) -> None:
        batch = any(len(row) > 1 for row in plan.step.rows)
        self._use_threads(self.n_threads_batch if batch else self.n_threads)
        ops = array.array("q", plan.ops)
        plan.ops.clear()
        status = self._c.ggh_model_step(
            self._model,
            plan.store.layout,
            plan.record.ctypes.data,
            plan.record.size,
            ops.buffer_info()[0],
            len(ops) // 3,
            logits.ctypes.data,
        )
        check(status, f"{self.name}: step")

    def _use_threads(self, n: int) -> None:
        if n != self._limit:
            self._pool.limit(n)
            self._limit = n

    def _logits_buffer(self, n: int) -> Floats:
        """[n, n_vocab]; the last step's memory again, unless someone still holds it. Fresh pages
        for every step would cost more than the sampler."""
        if len(self._logits) != n or sys.getrefcount(self._logits) > UNUSED_REFERENCES:
            self._logits = np.empty((n, self.config.n_vocab), np.float32)
        return self._logits

    # -- figures ------------------------------------------------------------------------------

    def scratch_nbytes(self) -> int:
        """Anonymous memory of the operations: buffers for the largest step so far."""
        return int(self._c.ggh_model_scratch_bytes(self._model))

    def times(self) -> dict[str, float]:
        """Seconds spent in each part of the steps since the start."""
        nanoseconds = (ctypes.c_uint64 * len(bindings.SECTIONS))()
        self._c.ggh_model_times(self._model, nanoseconds)
        return {name: ns / 1e9 for name, ns in zip(bindings.SECTIONS, nanoseconds, strict=True)}


def _row_record(row: Row) -> list[int]:
    n_blocks = -(-row.end // BLOCK)
    return [
        row.start,
        len(row),
        row.state_read,
        len(row.state_write),
        row.n_logits,
        n_blocks,
        *row.state_write,
        *row.tokens.tolist(),
        *row.blocks[:n_blocks].tolist(),
    ]


def _n_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
