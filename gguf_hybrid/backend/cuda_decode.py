"""Steps of single tokens: one graph launch for all rows, replayed with new inputs.

A graph is captured for each bucket of rows (1, 2, 4, ... 64). Everything that changes from step to
step lies in one pinned buffer that the graph copies to the device first; lengths are among it.
Surplus rows of a bucket write to the store's scratch row and scratch block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.metal.driver import Device, Graph
from gguf_hybrid.step import BLOCK, ZERO_STATE, Row

from .cuda_blocks import Attention, DeltaNet, FeedForward, Head
from .cuda_kernels import Kernels, Scratch
from .cuda_ops import Inputs, Ops
from .cuda_store import CudaStore
from .cuda_weights import Matrix
from .rope import Rope

MAX_ROWS = 64
SPLITS = 16
"""Parts of a row's keys computed side by side; a part takes every 16th chunk of 64."""
DOWN_SIMDS = 8

Operation = tuple[str, Any, int]
HIDDEN = "hidden_of"
"""The operation that ends a step for embeddings."""


@dataclass(frozen=True, slots=True)
class Host:
    """The inputs of a step in pinned memory, views into one buffer."""

    raw: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.int32]
    read_rows: npt.NDArray[np.int32]
    write_rows: npt.NDArray[np.int32]
    cells: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    angles: npt.NDArray[np.float32]
    blocks: npt.NDArray[np.int32]


class Decoder:
    """Runs the recorded operations of a model over rows of one token each."""

    def __init__(self, device: Device, kernels: Kernels, config: ModelConfig, rope: Rope) -> None:
        self._device, self._config, self._rope = device, config, rope
        self._scratch = Scratch(device)
        self._ops = Ops(device, kernels, config, self._scratch)
        self._kernels = kernels
        self._ones = device.allocate(4 * MAX_ROWS)
        device.upload(self._ones, np.ones(MAX_ROWS, np.float32))
        device.synchronize()

    def run(self, rows: Sequence[Row], operations: Sequence[Operation], store: CudaStore) -> int:
        """The address of the logits [len(rows), n_vocab], or of the normed activations
        [len(rows), n_embd] if that was the last operation; asynchronous."""
        bucket = 1
        while bucket < len(rows):
            bucket *= 2
        key = (bucket, tuple(id(block) for _, block, _ in operations))
        found = store.graphs.get(key)
        if found is None:
            found = store.graphs[key] = self._capture(bucket, operations, store)
        graph, host = found
        self._device.synchronize()
        self._fill(host, rows, store)
        graph.replay()
        if operations[-1][0] == HIDDEN:
            return self._ops.activations("h", MAX_ROWS, self._config.n_embd, False).floats
        return self._logits()

    def _logits(self) -> int:
        return self._ops.floats("logits", MAX_ROWS, self._config.n_vocab)

    def _fill(self, host: Host, rows: Sequence[Row], store: CudaStore) -> None:
        n = len(rows)
        host.tokens[:n] = [row.tokens[0] for row in rows]
        host.read_rows[:n] = [row.state_read for row in rows]
        host.write_rows[:n] = [row.state_write[0] for row in rows]
        positions = np.array([row.start for row in rows], np.int32)
        host.lengths[:n] = positions + 1
        host.angles[0, :n], host.angles[1, :n] = self._rope.tables(positions)
        for i, row in enumerate(rows):
            used = row.start // BLOCK + 1
            host.blocks[i, :used] = row.blocks[:used]
            host.cells[i] = row.blocks[used - 1] * BLOCK + row.start % BLOCK
        host.tokens[n:] = 0
        host.read_rows[n:] = ZERO_STATE
        host.write_rows[n:] = store.scratch_row
        host.lengths[n:] = 1
        host.blocks[n:, 0] = store.scratch_block
        host.cells[n:] = store.scratch_block * BLOCK

    def _host(self, bucket: int, n_blocks: int) -> Host:
        half = self._config.n_rot // 2
        raw = self._device.pinned(4 * bucket * (5 + 2 * half + n_blocks))
        words = raw.view(np.int32)
        five = words[: 5 * bucket].reshape(5, bucket)
        angles = words[5 * bucket : (5 + 2 * half) * bucket].view(np.float32)
        blocks = words[(5 + 2 * half) * bucket :].reshape(bucket, n_blocks)
        tokens, read_rows, write_rows, cells, lengths = five
        angles = angles.reshape(2, bucket, half)
        return Host(raw, tokens, read_rows, write_rows, cells, lengths, angles, blocks)

    def _capture(
        self, bucket: int, operations: Sequence[Operation], store: CudaStore
    ) -> tuple[Graph, Host]:
        """The first run happens outside the capture, so that kernels and buffers exist."""
        table = store.spec.n_blocks + 1
        host = self._host(bucket, table)
        self._fill(host, (), store)
        half = self._config.n_rot // 2
        address = self._scratch(f"inputs.{bucket}", host.raw.nbytes)
        fields = [address + 4 * bucket * i for i in range(6)]
        tokens, read_rows, write_rows, cells, lengths, cosines = fields
        sines = cosines + 4 * bucket * half
        blocks = sines + 4 * bucket * half
        inputs = Inputs(tokens, read_rows, write_rows, cells, lengths, blocks, cosines, sines)

        def record() -> None:
            self._device.upload(address, host.raw)
            for name, block, index in operations:
                getattr(self, f"_{name}")(block, index, inputs, store, bucket, table)

        record()
        self._device.synchronize()
        return self._device.capture(record), host

    # -- operations ---------------------------------------------------------------------------

    def _x(self) -> int:
        return self._ops.floats("x", MAX_ROWS, self._config.n_embd)

    def _embed(self, m: Matrix, _: int, run: Inputs, store: CudaStore, n: int, __: int) -> None:
        self._ops.embed(m, run.tokens, self._x(), n)

    def _delta_net(
        self, w: DeltaNet, index: int, run: Inputs, store: CudaStore, n: int, _: int
    ) -> None:
        c, ops = self._config, self._ops
        h = ops.activations("h", MAX_ROWS, c.n_embd, False)
        ops.norm(self._x(), w.norm, h, n)
        qkv, z = ops.floats("qkv", MAX_ROWS, c.conv_dim), ops.floats("z", MAX_ROWS, c.value_dim)
        beta = ops.floats("beta", MAX_ROWS, c.ssm_time_step_rank)
        alpha = ops.floats("alpha", MAX_ROWS, c.ssm_time_step_rank)
        ops.matvec(h, [(w.qkv, qkv), (w.gate, z), (w.beta, beta), (w.alpha, alpha)], n)
        o = ops.activations("o", MAX_ROWS, c.value_dim, False)
        states = store.states + 4 * index * store.layer_floats
        step = self._kernels(
            "delta_step",
            D=c.ssm_state_size,
            HK=c.ssm_group_count,
            HV=c.ssm_time_step_rank,
            KC=c.ssm_conv_kernel,
            TILED=c.tiled_v_heads,
            ROW_FLOATS=store.row_floats,
            EPS=c.rms_eps,
        )
        step.launch(
            (c.ssm_time_step_rank, n, 1), 8 * c.ssm_state_size, qkv, z, alpha, beta, w.taps,
            w.dt_bias, w.a, w.ssm_norm, run.read_rows, run.write_rows, states, states,
            o.floats, o.records,
        )  # fmt: skip
        ops.matvec(o, [(w.out, self._x())], n, residual=self._x())

    def _attend(
        self, w: Attention, index: int, run: Inputs, store: CudaStore, n: int, table: int
    ) -> None:
        c, ops = self._config, self._ops
        width, kv_width = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
        h = ops.activations("h", MAX_ROWS, c.n_embd, False)
        ops.norm(self._x(), w.norm, h, n)
        qg, q = ops.floats("qg", MAX_ROWS, 2 * width), ops.floats("q", MAX_ROWS, width)
        k, v = ops.floats("k", MAX_ROWS, kv_width), ops.floats("v", MAX_ROWS, kv_width)
        ops.matvec(h, [(w.q, qg), (w.k, k), (w.v, v)], n)
        ops.rope_and_store((w.q_norm, w.k_norm), (qg, k, v), q, run, store, index, n)
        o = ops.activations("attended", MAX_ROWS, width, False)
        ops.attend_rows(q, qg, o, run.lengths, run.blocks, table, store, index, n, SPLITS)
        ops.matvec(o, [(w.out, self._x())], n, residual=self._x())

    def _feed_forward(
        self, w: FeedForward, _: int, run: Inputs, store: CudaStore, n: int, __: int
    ) -> None:
        c, ops = self._config, self._ops
        y = ops.activations("h", MAX_ROWS, c.n_embd, False)
        ops.norm(self._x(), w.norm, y, n)
        k_used = c.n_expert_used if w.router else 0
        chosen = self._scratch("chosen", 4 * MAX_ROWS * max(k_used, 1))
        weights = ops.floats("weights", MAX_ROWS, k_used + 1) if w.router else self._ones
        if w.router:
            logits = ops.floats("router", MAX_ROWS, c.n_expert)
            shared = ops.floats("shared", MAX_ROWS, 1) if w.shared_router else 0
            products = [(w.router, logits)]
            if w.shared_router:
                products.append((w.shared_router, shared))
            ops.matvec(y, products, n)
            ops.top_experts(logits, shared, chosen, weights, n)
        self._experts(w, y.records, y.floats, chosen, weights, n)

    def _experts(
        self, w: FeedForward, records: int, floats: int, chosen: int, weights: int, n: int
    ) -> None:
        c, ops = self._config, self._ops
        k_used = c.n_expert_used if w.router else 0
        ranks = k_used + (w.shared_gate is not None)
        routed, shared = w.gate or w.shared_gate, w.shared_gate or w.gate
        down, shared_down = w.down or w.shared_down, w.shared_down or w.down
        assert routed and shared and down and shared_down
        up, shared_up = w.up or w.shared_up, w.shared_up or w.up
        assert up and shared_up
        width = max(routed.n, shared.n)
        h = ops.activations("hidden", MAX_ROWS * ranks, width, False)
        sizes = {"K_USED": k_used, "RANKS": ranks, "F": routed.n, "FS": shared.n, "FMAX": width}
        hidden_rows = 2 if n <= 2 else 4
        gate_up = self._kernels(
            "gate_up", K=c.n_embd, **sizes, TE=routed.type, TS=shared.type,
            EXPERT_ROWS=routed.stack_rows, R=hidden_rows,
        )  # fmt: skip
        gate_up.launch(
            (n * ranks, width // 32, 1),
            1024 // hidden_rows, records, floats, chosen, routed.address, up.address,
            shared.address, shared_up.address, h.floats, h.records,
        )  # fmt: skip
        per_simd = 2 if n >= 4 and c.n_embd % 2 == 0 else 1
        kernel = self._kernels(
            "down", N=c.n_embd, R=per_simd, **sizes, TE=down.type, TS=shared_down.type
        )
        groups = -(-c.n_embd // (DOWN_SIMDS * per_simd))
        kernel.launch(
            (n, groups, 1), 32 * DOWN_SIMDS, h.records, h.floats, chosen, weights, down.address,
            shared_down.address, self._x(), self._x(),
        )  # fmt: skip

    def _logits_of(
        self, head: Head, _: int, run: Inputs, store: CudaStore, n: int, __: int
    ) -> None:
        h = self._ops.activations("h", MAX_ROWS, self._config.n_embd, False)
        self._ops.norm(self._x(), head.norm, h, n)
        self._ops.matvec(h, [(head.output, self._logits())], n)

    def _hidden_of(
        self, head: Head, _: int, run: Inputs, store: CudaStore, n: int, __: int
    ) -> None:
        h = self._ops.activations("h", MAX_ROWS, self._config.n_embd, False)
        self._ops.norm(self._x(), head.norm, h, n)
