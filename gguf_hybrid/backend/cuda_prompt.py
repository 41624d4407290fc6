"""Prompt rows, one at a time: matrix products on the tensor units.

Activations become f16 in front of a product, sums stay float32; float32 weights (routers, gates)
are multiplied in float32. What is computed for a token does not depend on how many tokens the row
has, as long as it is cut at multiples of ``CHUNK`` (see ``cuda_delta``): every other sum has one
order whatever the launch.
"""

from collections.abc import Sequence

import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.metal.driver import Device
from gguf_hybrid.step import BLOCK, Row
from gguf_hybrid.weights.ggml import GGMLType

from .cuda_blocks import Attention, DeltaNet, FeedForward, Head
from .cuda_decode import HIDDEN, Operation
from .cuda_delta import DeltaRule
from .cuda_kernels import Kernels, Scratch
from .cuda_ops import Activations, Inputs, Ops
from .cuda_store import CudaStore
from .cuda_weights import Matrix
from .rope import Rope

TALL_TILE, SHORT_TILE = 128, 64
"""Rows of x that a threadgroup of ``matmul`` takes; both add along k in the same order."""
N_TILE = 64
PAIR_TILE = 64
"""(query, head) pairs that a threadgroup of ``attend_prompt`` takes."""


class Prompter:
    """Runs the recorded operations of a model over one row of n tokens."""

    def __init__(self, device: Device, kernels: Kernels, config: ModelConfig, rope: Rope) -> None:
        self._device, self._config, self._rope = device, config, rope
        self._scratch = Scratch(device)
        self._ops = Ops(device, kernels, config, self._scratch)
        self._kernels = kernels
        self._delta_rule = DeltaRule(config, kernels, self._scratch, self._ops)

    def run(self, row: Row, operations: Sequence[Operation], store: CudaStore) -> int:
        """The address of the logits [row.n_logits, n_vocab], or of the normed activations of all
        tokens if that was the last operation; asynchronous."""
        inputs = self._upload(row)
        for name, block, index in operations:
            getattr(self, f"_{name}")(block, index, inputs, store, row)
        if operations[-1][0] == HIDDEN:
            return self._ops.activations("h", len(row), self._config.n_embd, True).floats
        return self._logits(row)

    def _upload(self, row: Row) -> Inputs:
        positions = np.arange(row.start, row.end, dtype=np.int32)
        cells = row.blocks[positions // BLOCK] * BLOCK + positions % BLOCK
        cosines, sines = self._rope.tables(positions)
        parts = [
            row.tokens,
            np.array([row.state_read], np.int32),
            np.array(row.state_write, np.int32),
            cells,
            positions + 1,
            row.blocks,
            cosines.view(np.int32).ravel(),
            sines.view(np.int32).ravel(),
        ]
        packed = np.concatenate([part.astype(np.int32, copy=False) for part in parts])
        address = self._scratch("inputs", packed.nbytes)
        self._device.upload(address, packed)
        self._device.synchronize()
        ends = np.cumsum([0, *(part.size for part in parts)])
        return Inputs(*(address + 4 * int(first) for first in ends[:-1]))

    def _x(self, row: Row) -> int:
        return self._ops.floats("x", len(row), self._config.n_embd)

    def _logits(self, row: Row) -> int:
        return self._ops.floats("logits", row.n_logits, self._config.n_vocab)

    # -- products -----------------------------------------------------------------------------

    def _products(self, x: Activations, products: Sequence[tuple[Matrix, int]], rows: int) -> None:
        """Several matrices times the same x; the float32 ones in one launch."""
        exact = [pair for pair in products if pair[0].type is GGMLType.F32]
        if exact:
            self._ops.matvec(x, exact, rows, is_prompt=True)
        for w, y in products:
            if w.type is not GGMLType.F32:
                self._product(x, w, y, rows)

    def _product(self, x: Activations, w: Matrix, y: int, rows: int, residual: int = 0) -> None:
        if w.type is GGMLType.F32:
            self._ops.matvec(x, [(w, y)], rows, residual, is_prompt=True)
            return
        tile = TALL_TILE if rows > SHORT_TILE else SHORT_TILE
        grid = (-(-w.n // N_TILE), -(-rows // tile), 1)
        run = self._matmul(w, x.k, tile, grouped=False, divisor=1, add=bool(residual))
        run.launch(grid, 256, x.halves, w.address, 0, 0, residual, y, rows)

    def _grouped(
        self, x: Activations, w: Matrix, y: int, tiles: int, order: int, n_pairs: int, divisor: int
    ) -> None:
        """Every (token, expert) pair's row of x times its expert of the stack."""
        n_tiles = min(self._config.n_expert, n_pairs) + n_pairs // SHORT_TILE
        run = self._matmul(w, x.k, SHORT_TILE, grouped=True, divisor=divisor, add=False)
        grid = (-(-w.n // N_TILE), n_tiles, 1)
        run.launch(grid, 256, x.halves, w.address, tiles, order, 0, y, n_pairs)

    def _matmul(self, w: Matrix, k: int, tile: int, grouped: bool, divisor: int, add: bool):  # type: ignore[no-untyped-def]
        return self._kernels(
            "matmul",
            K=k,
            N=w.n,
            T0=w.type,
            BM=tile,
            GROUPED=grouped,
            SOURCE_DIV=divisor,
            EXPERT_ROWS=w.stack_rows,
            ADD=add,
        )

    # -- operations ---------------------------------------------------------------------------

    def _embed(self, m: Matrix, _: int, run: Inputs, store: CudaStore, row: Row) -> None:
        self._ops.embed(m, run.tokens, self._x(row), len(row))

    def _normed(self, weight: int, row: Row) -> Activations:
        h = self._ops.activations("h", len(row), self._config.n_embd, True)
        self._ops.norm(self._x(row), weight, h, len(row), records=False)
        return h

    def _delta_net(self, w: DeltaNet, index: int, run: Inputs, store: CudaStore, row: Row) -> None:
        c, ops, n = self._config, self._ops, len(row)
        h = self._normed(w.norm, row)
        heads = c.ssm_time_step_rank
        qkv, z = ops.floats("qkv", n, c.conv_dim), ops.floats("z", n, c.value_dim)
        beta, alpha = ops.floats("beta", n, heads), ops.floats("alpha", n, heads)
        self._products(h, [(w.qkv, qkv), (w.gate, z), (w.beta, beta), (w.alpha, alpha)], n)
        o = self._delta_rule.run(w, (qkv, alpha, beta), index, run, store, row)
        y = ops.activations("o", n, c.value_dim, True)
        norm = self._kernels("gated_norm", D=c.ssm_state_size, EPS=c.rms_eps)
        norm.launch((n * heads, 1, 1), c.ssm_state_size, o, z, w.ssm_norm, y.floats, y.halves)
        self._product(y, w.out, self._x(row), n, residual=self._x(row))

    def _attend(self, w: Attention, index: int, run: Inputs, store: CudaStore, row: Row) -> None:
        c, ops, n = self._config, self._ops, len(row)
        width, kv_width = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
        h = self._normed(w.norm, row)
        qg, q = ops.floats("qg", n, 2 * width), ops.floats("q", n, width)
        k, v = ops.floats("k", n, kv_width), ops.floats("v", n, kv_width)
        self._products(h, [(w.q, qg), (w.k, k), (w.v, v)], n)
        ops.rope_and_store((w.q_norm, w.k_norm), (qg, k, v), q, run, store, index, n)
        o = ops.activations("attended", n, width, True)
        attend = self._kernels(
            "attend_prompt",
            D=c.head_dim,
            NH=c.n_head,
            NKV=c.n_head_kv,
            BLOCK_STRIDE=store.block_halves,
            SCALE=c.attention_scale,
        )
        n_pairs = n * c.n_head // c.n_head_kv
        tiles = -(-n_pairs // PAIR_TILE)
        parts = self._scratch("queries", tiles * c.n_head_kv * 2 * PAIR_TILE * c.head_dim)
        attend.launch(
            (tiles, c.n_head_kv, 1), 128, q, store.kv + 2 * index * store.layer_halves, run.lengths,
            run.blocks, qg, parts, o.floats, o.halves, n_pairs,
        )  # fmt: skip
        self._product(o, w.out, self._x(row), n, residual=self._x(row))

    def _feed_forward(
        self, w: FeedForward, _: int, run: Inputs, store: CudaStore, row: Row
    ) -> None:
        y = self._normed(w.norm, row)
        if w.router is None:
            assert w.shared_down is not None
            h = self._hidden_of_shared(w, y, len(row))
            self._product(h, w.shared_down, self._x(row), len(row), residual=self._x(row))
            return
        self._experts(w, y, row)

    def _hidden_of_shared(self, w: FeedForward, y: Activations, n: int) -> Activations:
        assert w.shared_gate is not None and w.shared_up is not None
        width = w.shared_gate.n
        gate, up = self._ops.floats("gate", n, width), self._ops.floats("up", n, width)
        self._products(y, [(w.shared_gate, gate), (w.shared_up, up)], n)
        return self._swiglu("shared_hidden", gate, up, n, width)

    def _swiglu(self, name: str, gate: int, up: int, rows: int, width: int) -> Activations:
        h = self._ops.activations(name, rows, width, True)
        count = rows * width
        run = self._kernels("swiglu")
        run.launch((-(-count // 256), 1, 1), 256, gate, up, h.floats, h.halves, count)
        return h

    def _experts(self, w: FeedForward, y: Activations, row: Row) -> None:
        c, ops, n = self._config, self._ops, len(row)
        assert w.router and w.gate and w.up and w.down
        n_pairs, k_used, width = n * c.n_expert_used, c.n_expert_used, w.gate.n
        logits = ops.floats("router", n, c.n_expert)
        shared_logit = ops.floats("shared", n, 1) if w.shared_router else 0
        routers = [(w.router, logits)]
        if w.shared_router:
            routers.append((w.shared_router, shared_logit))
        self._products(y, routers, n)
        chosen, order = self._scratch("chosen", 4 * n_pairs), self._scratch("order", 4 * n_pairs)
        weights = ops.floats("weights", n, k_used + 1)
        ops.top_experts(logits, shared_logit, chosen, weights, n)
        tiles = self._scratch("tiles", 4 + 12 * (c.n_expert + n_pairs // SHORT_TILE))
        cursor = self._scratch("cursor", 4 * c.n_expert)
        sort = self._kernels("expert_tiles", E=c.n_expert, BM=SHORT_TILE)
        sort.launch((1, 1, 1), 1024, chosen, order, tiles, cursor, n_pairs)
        gate, up = ops.floats("gate", n_pairs, width), ops.floats("up", n_pairs, width)
        self._grouped(y, w.gate, gate, tiles, order, n_pairs, k_used)
        self._grouped(y, w.up, up, tiles, order, n_pairs, k_used)
        hidden = self._swiglu("hidden", gate, up, n_pairs, width)
        routed = ops.floats("routed", n_pairs, c.n_embd)
        self._grouped(hidden, w.down, routed, tiles, order, n_pairs, 1)
        shared = 0
        if w.shared_down is not None:
            shared = ops.floats("shared_out", n, c.n_embd)
            self._product(self._hidden_of_shared(w, y, n), w.shared_down, shared, n)
        combine = self._kernels("combine", N=c.n_embd, K_USED=k_used, SHARED=bool(shared))
        x = self._x(row)
        combine.launch((n, 1, 1), 256, routed, shared, weights, x, x)

    def _logits_of(self, head: Head, _: int, run: Inputs, store: CudaStore, row: Row) -> None:
        n, width = row.n_logits, self._config.n_embd
        if n == 0:
            return
        h = self._ops.activations("last", n, width, False)
        x = self._x(row) + 4 * (len(row) - n) * width
        self._ops.norm(x, head.norm, h, n)
        self._ops.matvec(h, [(head.output, self._logits(row))], n, is_prompt=True)

    def _hidden_of(self, head: Head, _: int, run: Inputs, store: CudaStore, row: Row) -> None:
        self._normed(head.norm, row)
