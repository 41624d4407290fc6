"""Steps of single tokens: one graph launch for all rows, replayed with new inputs.

A graph is captured for each bucket of rows (1, 2, 4, ... 64). Everything that changes from step to
step lies in one pinned buffer that is copied to the device first; lengths are among it. There are
two such buffers, so that a step can be prepared and launched while the one before still runs.
Surplus rows of a bucket write to the store's scratch row and scratch block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.memory.store import Floats
from gguf_hybrid.metal.driver import Device, Graph
from gguf_hybrid.sampling.device import Choice
from gguf_hybrid.step import BLOCK, ZERO_STATE, Row

from .cuda_blocks import Attention, DeltaNet, FeedForward, Head
from .cuda_kernels import Kernels, Scratch
from .cuda_ops import Activations, Experts, Inputs, Ops
from .cuda_sampling import Sampling, Told, n_words
from .cuda_store import CudaStore
from .cuda_weights import SUPERBLOCK, Matrix
from .rope import Rope

MAX_ROWS = 64
SPLITS = 16
"""Parts of a row's keys computed side by side; a part takes every 16th chunk of ``CHUNK``."""
CHUNK = 32
HIDDEN_PARTS = 4
"""Parts of the columns that ``gate_up`` adds up in order."""

Operation = tuple[str, Any, int]
HIDDEN = "hidden_of"
"""The operation that ends a step for embeddings."""
SAMPLE = "sample_of"
"""The operation that ends a step whose tokens the device chooses."""


@dataclass(slots=True)
class Host:
    """The inputs of a step in pinned memory, views into one buffer, and what comes back.

    ``free`` is an event: once it has happened, the device has read and written all of it.
    """

    raw: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.int32]
    read_rows: npt.NDArray[np.int32]
    write_rows: npt.NDArray[np.int32]
    cells: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    angles: npt.NDArray[np.float32]
    blocks: npt.NDArray[np.int32]
    told: Told
    picks: npt.NDArray[np.int32]
    free: Any = None


@dataclass(slots=True)
class Captured:
    """The graph of a bucket; ``address`` is where it reads what ``hosts`` hold in turn."""

    graph: Graph
    address: int
    hosts: list[Host]


class Decoder:
    """Runs the recorded operations of a model over rows of one token each."""

    def __init__(self, device: Device, kernels: Kernels, config: ModelConfig, rope: Rope) -> None:
        self._device, self._config, self._rope = device, config, rope
        self._scratch = Scratch(device, fixed=True)
        self._ops = Ops(device, kernels, config, self._scratch)
        self._kernels = kernels
        self._sampling = Sampling(kernels, self._scratch, config.n_vocab, MAX_ROWS)
        self._told = 0
        self._joining: Experts | None = None
        self._ones = device.allocate(4 * MAX_ROWS)
        device.upload(self._ones, np.ones(MAX_ROWS, np.float32))
        device.synchronize()

    def run(self, rows: Sequence[Row], operations: Sequence[Operation], store: CudaStore) -> int:
        """The address of the logits [len(rows), n_vocab], or of the normed activations
        [len(rows), n_embd] if that was the last operation; asynchronous."""
        host = self._replay(rows, operations, store, (), ())
        host.free = self._device.record(host.free)
        if operations[-1][0] == HIDDEN:
            return self._ops.activations("h", MAX_ROWS, self._config.n_embd, False).floats
        return self._logits()

    def sample(
        self,
        rows: Sequence[Row],
        operations: Sequence[Operation],
        store: CudaStore,
        choices: Sequence[Choice | None],
        sources: Sequence[int],
        logits: Floats,
    ) -> Host:
        """Start a step that ends in ``SAMPLE``. Once the returned host is free, ``picks`` are the
        tokens, and ``logits`` (pinned) those of the rows without a choice."""
        host = self._replay(rows, operations, store, choices, sources)
        self._device.download(host.picks, self._sampling.picks)
        wanted = [i for i, choice in enumerate(choices) if choice is None]
        for out, i in zip(logits, wanted, strict=True):
            self._device.download(out, self._logits() + 4 * i * self._config.n_vocab)
        host.free = self._device.record(host.free)
        return host

    def _replay(
        self,
        rows: Sequence[Row],
        operations: Sequence[Operation],
        store: CudaStore,
        choices: Sequence[Choice | None],
        sources: Sequence[int],
    ) -> Host:
        bucket = 1
        while bucket < len(rows):
            bucket *= 2
        key = (bucket, tuple((name, id(block)) for name, block, _ in operations))
        captured = store.graphs.get(key)
        if captured is None:
            captured = store.graphs[key] = self._capture(bucket, operations, store)
        captured.hosts.reverse()
        host: Host = captured.hosts[0]
        if host.free is not None:
            self._device.wait(host.free)
        self._fill(host, rows, store)
        if choices:
            host.told.fill(choices, sources)
        self._device.upload(captured.address, host.raw)
        captured.graph.replay()
        return host

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
        sizes = [5 * bucket, 2 * half * bucket, n_blocks * bucket, n_words(bucket)]
        raw = self._device.pinned(4 * sum(sizes))
        five, angles, blocks, told = np.split(raw.view(np.int32), np.cumsum(sizes[:-1]))
        tokens, read_rows, write_rows, cells, lengths = five.reshape(5, bucket)
        floats = angles.view(np.float32).reshape(2, bucket, half)
        tables = blocks.reshape(bucket, n_blocks)
        picks = self._device.pinned(4 * bucket).view(np.int32)
        return Host(
            raw, tokens, read_rows, write_rows, cells, lengths, floats, tables,
            Told.over(told, bucket), picks,
        )  # fmt: skip

    def _capture(self, bucket: int, operations: Sequence[Operation], store: CudaStore) -> Captured:
        """The first run happens outside the capture, so that kernels and buffers exist. The picks
        of the step before, which may still be wanted, survive it."""
        table = store.spec.n_blocks + 1
        hosts = [self._host(bucket, table) for _ in range(2)]
        for host in hosts:
            self._fill(host, (), store)
            host.told.fill((), ())
        address = self._scratch(f"inputs.{bucket}.{table}", hosts[0].raw.nbytes)
        fields = [address + 4 * bucket * i for i in range(6)]
        tokens, read_rows, write_rows, cells, lengths, cosines = fields
        sines = cosines + 4 * bucket * (self._config.n_rot // 2)
        blocks = sines + 4 * bucket * (self._config.n_rot // 2)
        inputs = Inputs(tokens, read_rows, write_rows, cells, lengths, blocks, cosines, sines)
        told = blocks + 4 * bucket * table

        def record() -> None:
            self._told = told
            if operations[-1][0] == SAMPLE:
                self._sampling.take_tokens(told, tokens, bucket)
            for name, block, index in operations:
                getattr(self, f"_{name}")(block, index, inputs, store, bucket, table)

        self._device.upload(address, hosts[0].raw)
        kept = self._scratch("picks.kept", 4 * MAX_ROWS)
        self._device.copy(kept, self._sampling.picks, 4 * MAX_ROWS)
        record()
        self._device.copy(self._sampling.picks, kept, 4 * MAX_ROWS)
        self._device.synchronize()
        return Captured(self._device.capture(record), address, hosts)

    # -- operations ---------------------------------------------------------------------------

    def _x(self) -> int:
        return self._ops.floats("x", MAX_ROWS, self._config.n_embd)

    def _normed(self, weight: int, n: int) -> Activations:
        """The norm of the residual stream, which the last feed-forward joins on the way."""
        h = self._ops.activations("h", MAX_ROWS, self._config.n_embd, False)
        self._ops.norm(self._x(), weight, h, n, joining=self._joining)
        self._joining = None
        return h

    def _embed(self, m: Matrix, _: int, run: Inputs, store: CudaStore, n: int, __: int) -> None:
        self._ops.embed(m, run.tokens, self._x(), n)

    def _delta_net(
        self, w: DeltaNet, index: int, run: Inputs, store: CudaStore, n: int, _: int
    ) -> None:
        c, ops = self._config, self._ops
        h = self._normed(w.norm, n)
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
        h = self._normed(w.norm, n)
        qg, q = ops.floats("qg", MAX_ROWS, 2 * width), ops.floats("q", MAX_ROWS, width)
        k, v = ops.floats("k", MAX_ROWS, kv_width), ops.floats("v", MAX_ROWS, kv_width)
        ops.matvec(h, [(w.q, qg), (w.k, k), (w.v, v)], n)
        ops.rope_and_store((w.q_norm, w.k_norm), (qg, k, v), q, run, store, index, n)
        o = ops.activations("attended", MAX_ROWS, width, False)
        ops.attend_rows(
            q, qg, o, run.lengths, run.blocks, table, store, index, n, MAX_ROWS, SPLITS, CHUNK
        )
        ops.matvec(o, [(w.out, self._x())], n, residual=self._x())

    def _feed_forward(
        self, w: FeedForward, _: int, run: Inputs, store: CudaStore, n: int, __: int
    ) -> None:
        c, ops = self._config, self._ops
        y = self._normed(w.norm, n)
        k_used = c.n_expert_used if w.router else 0
        groups = self._scratch("groups", 4 + 8 * max(c.n_expert, 1))
        members = self._scratch("members", 4 * MAX_ROWS * max(c.n_expert, 1))
        weights = ops.floats("weights", MAX_ROWS, k_used + 1) if w.router else self._ones
        if w.router:
            logits = ops.floats("router", MAX_ROWS, c.n_expert)
            shared = ops.floats("shared", MAX_ROWS, 1) if w.shared_router else 0
            products = [(w.router, logits)]
            if w.shared_router:
                products.append((w.shared_router, shared))
            ops.matvec(y, products, n)
            ranks = k_used + (w.shared_gate is not None)
            ops.route(logits, shared, weights, groups, members, ranks, n)
        self._experts(w, y, groups, members, weights, n)

    def _experts(
        self, w: FeedForward, y: Activations, groups: int, members: int, weights: int, n: int
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
        n_groups, tiles = min(n * k_used, c.n_expert) + ranks - k_used, 1 if n <= 8 else 2
        gate_up = self._kernels(
            "gate_up", K=c.n_embd, **sizes, TE=routed.type, TS=shared.type,
            EXPERT_ROWS=routed.stack_rows, NT=tiles, KS=HIDDEN_PARTS,
            LANES=128 * HIDDEN_PARTS, RESIDENT=2,
        )  # fmt: skip
        gate_up.launch(
            (n_groups, width // 32, 1), 128 * HIDDEN_PARTS,
            y.records, y.floats, groups, members, routed.address, up.address,
            shared.address, shared_up.address, h.floats, h.records, n,
        )  # fmt: skip
        parts = next(p for p in (8, 4, 2, 1) if width >= p * SUPERBLOCK)
        kernel = self._kernels(
            "down", N=c.n_embd, **sizes, TE=down.type, TS=shared_down.type, NT=tiles, KS=parts,
            LANES=256, RESIDENT=4,
        )  # fmt: skip
        routed_out = ops.floats("routed", MAX_ROWS * ranks, c.n_embd)
        kernel.launch(
            (n_groups, -(-c.n_embd * parts // 128), 1), 256, h.records, h.floats, groups,
            members, down.address, shared_down.address, routed_out, n,
        )  # fmt: skip
        self._joining = Experts(routed_out, weights, ranks, k_used)

    def _logits_of(
        self, head: Head, _: int, run: Inputs, store: CudaStore, n: int, __: int
    ) -> None:
        h = self._normed(head.norm, n)
        self._ops.matvec(h, [(head.output, self._logits())], n)

    def _sample_of(
        self, head: Head, index: int, run: Inputs, store: CudaStore, n: int, table: int
    ) -> None:
        self._logits_of(head, index, run, store, n, table)
        self._sampling.choose(self._told, run.tokens, self._logits(), n)

    def _hidden_of(
        self, head: Head, _: int, run: Inputs, store: CudaStore, n: int, __: int
    ) -> None:
        self._normed(head.norm, n)
