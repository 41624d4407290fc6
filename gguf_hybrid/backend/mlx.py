"""The reference backend: every operation of the model in plain MLX, on any MLX device.

Correctness first. Rows of one token are batched, longer rows are computed one after another, and no
operation lets a row see how many others there are. Kernels (``gguf_hybrid.metal``) and the compiled
CPU backend are measured against this file.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.step import BLOCK, CHUNK, Row, Step
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.reader import TensorInfo

from .base import Floats, StoreSpec, Tensors
from .mlx_delta import delta_chunks, delta_step
from .mlx_linear import Linear, linear_of, vector_of
from .mlx_store import MlxStore
from .rope import rope_of

DELTA_CHUNK = 16
"""Tokens per chunk of the delta rule; divides ``CHUNK``. On a CPU small chunks win: the work inside
a chunk grows with its length squared."""


CACHE_LIMIT = 512 << 20
"""Bytes of freed buffers that MLX may keep for reuse; memory of a server must come back."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a step computed together: all rows of one token, or one longer row.

    ``first`` ... ``end`` are their tokens in plan order; a group is [len(rows), n, ...].
    """

    rows: tuple[Row, ...]
    first: int
    end: int

    @property
    def n(self) -> int:
        return len(self.rows[0])


@dataclass(frozen=True, slots=True)
class Plan:
    """A step with its tokens reordered so that every group is contiguous."""

    store: MlxStore
    groups: tuple[Group, ...]
    tokens: mx.array
    cos: mx.array
    sin: mx.array
    place: mx.array
    """Where each token of the step is in plan order."""
    logit_index: mx.array


class MlxBackend:
    """``gguf_hybrid.backend.base.Backend`` in plain MLX, float32 throughout."""

    kernel_types = frozenset(GGMLType)

    def __init__(self, config: ModelConfig, device: mx.DeviceType) -> None:
        mx.set_default_device(mx.Device(device))
        self.config = config
        if mx.metal.is_available() and device == mx.gpu:
            # Weights must stay resident, or macOS pages them out between requests.
            mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))
        mx.set_cache_limit(CACHE_LIMIT)
        self.name = f"mlx ({mx.default_device().type.name})"
        self._rope = rope_of(config)
        self._weights: list[Linear | mx.array] = []

    # -- weights ------------------------------------------------------------------------------

    def prepare_embedding(self, token_embd: TensorInfo) -> Linear:
        embedding: Linear = self._keep(linear_of(token_embd))
        return embedding

    def prepare_block(self, layer: int, tensors: Tensors) -> dict[str, Any]:
        """Matrices as ``Linear``, vectors and the convolution as float32 arrays."""
        block: dict[str, Any] = {}
        for name, tensor in tensors.items():
            vector = len(tensor.shape) == 1 or name in {"ssm_conv1d.weight"}
            block[name] = self._keep(vector_of(tensor) if vector else linear_of(tensor))
        return block

    def prepare_head(
        self, output_norm: TensorInfo, output: TensorInfo, embedding: Linear
    ) -> tuple[mx.array, Linear]:
        tied = output.name == "token_embd.weight"
        head = embedding if tied else self._keep(linear_of(output))
        return self._keep(vector_of(output_norm)), head

    def weight_nbytes(self) -> int:
        return sum(w.nbytes for w in self._weights)

    def _keep(self, weight: Any) -> Any:
        self._weights.append(weight)
        return weight

    # -- one step -----------------------------------------------------------------------------

    def new_store(self, spec: StoreSpec) -> MlxStore:
        return MlxStore(self.config, spec)

    def begin(self, step: Step, store: MlxStore) -> Plan:
        singles = [i for i, row in enumerate(step.rows) if len(row) == 1]
        longer = [i for i, row in enumerate(step.rows) if len(row) > 1]
        members = ([tuple(singles)] if singles else []) + [(i,) for i in longer]
        order = np.concatenate(
            [np.arange(step.offsets[i], step.offsets[i + 1]) for rows in members for i in rows]
        )
        groups, first = [], 0
        for rows in members:
            end = first + sum(len(step.rows[i]) for i in rows)
            groups.append(Group(tuple(step.rows[i] for i in rows), first, end))
            first = end
        store.begin_step()
        cos, sin = self._rope.tables(step.positions[order])
        place = np.argsort(order)
        return Plan(
            store,
            tuple(groups),
            mx.array(step.tokens[order]),
            mx.array(cos),
            mx.array(sin),
            mx.array(place.astype(np.int32)),
            mx.array(place[step.logit_index].astype(np.int32)),
        )

    def embed(self, embedding: Linear, plan: Plan) -> mx.array:
        return embedding.rows(plan.tokens)

    def logits(self, head: tuple[mx.array, Linear], x: mx.array, plan: Plan) -> Floats:
        norm, output = head
        if not plan.logit_index.size:
            # A product with no rows ends the process on MLX's CPU backend.
            mx.eval(x, plan.store.settle())
            return np.empty((0, self.config.n_vocab), np.float32)
        wanted = output(self._norm(x[plan.logit_index], norm))
        mx.eval(wanted, plan.store.settle())
        return np.array(wanted)

    def hidden(self, head: tuple[mx.array, Linear], x: mx.array, plan: Plan) -> Floats:
        states = self._norm(x[plan.place], head[0])
        mx.eval(states, plan.store.settle())
        return np.array(states)

    def undo(self, plan: Plan) -> None:
        plan.store.undo_step(
            r for group in plan.groups for row in group.rows for r in row.state_write
        )

    def _norm(self, x: mx.array, weight: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, weight, self.config.rms_eps)

    # -- gated delta net ----------------------------------------------------------------------

    def gated_delta_net(
        self, block: dict[str, Any], x: mx.array, plan: Plan, index: int
    ) -> mx.array:
        c = self.config
        h = self._norm(x, block["attn_norm.weight"])
        qkv = block["attn_qkv.weight"](h)
        z = block["attn_gate.weight"](h)
        beta = mx.sigmoid(block["ssm_beta.weight"](h))
        g = _softplus(block["ssm_alpha.weight"](h) + block["ssm_dt.bias"]) * block["ssm_a"]
        parts = [
            self._mix(group, qkv, g, beta, block["ssm_conv1d.weight"], plan.store, index)
            for group in plan.groups
        ]
        o = self._norm(mx.concatenate(parts), block["ssm_norm.weight"])
        o = o * _silu(z.reshape(o.shape))
        mixed: mx.array = block["ssm_out.weight"](o.reshape(-1, c.value_dim))
        return x + mixed

    def _mix(
        self,
        group: Group,
        qkv: mx.array,
        g: mx.array,
        beta: mx.array,
        taps: mx.array,
        store: MlxStore,
        index: int,
    ) -> mx.array:
        """Convolution and delta rule of one group; o [tokens, H_v, D]."""
        span = slice(group.first, group.end)
        shape = (len(group.rows), group.n)
        q, k, v, history = self._convolve(group, qkv[span].reshape(*shape, -1), taps, store, index)
        g, beta = g[span].reshape(*shape, -1), beta[span].reshape(*shape, -1)
        state = store.delta[index].read(tuple(row.state_read for row in group.rows))
        n_states = len(group.rows[0].state_write)
        outputs = []
        tail = group.n - n_states + 1 if n_states > 1 else group.n
        for first, end in _pieces(group.rows[0].start, tail):
            cut = [a[:, first:end] for a in (q, k, v, g, beta)]
            o, state = _delta_piece(cut, state)
            outputs.append(o)
        self._write_states(group, history, state, tail, 0, store, index)
        for t in range(tail, group.n):
            o, state = delta_step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], state)
            outputs.append(o[:, None])
            self._write_states(group, history, state, t + 1, t + 1 - tail, store, index)
        return mx.concatenate(outputs, axis=1).reshape(group.end - group.first, *v.shape[2:])

    def _write_states(
        self,
        group: Group,
        history: mx.array,
        state: mx.array,
        n_absorbed: int,
        age: int,
        store: MlxStore,
        index: int,
    ) -> None:
        """Store the state after ``n_absorbed`` tokens; ``age`` counts from the oldest kept."""
        rows = tuple(row.state_write[len(row.state_write) - 1 - age] for row in group.rows)
        n_taps = self.config.ssm_conv_kernel - 1
        store.conv[index].write(rows, history[:, n_absorbed : n_absorbed + n_taps])
        store.delta[index].write(rows, state)

    def _convolve(
        self, group: Group, qkv: mx.array, taps: mx.array, store: MlxStore, index: int
    ) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Causal depthwise convolution with SiLU: q, k, v [B, n, H_v, D] and the input history."""
        c = self.config
        before = store.conv[index].read(tuple(row.state_read for row in group.rows))
        history = mx.concatenate([before, qkv], axis=1)
        n = group.n
        y = history[:, :n] * taps[:, 0]
        for i in range(1, c.ssm_conv_kernel):
            y = y + history[:, i : i + n] * taps[:, i]
        y = _silu(y)
        heads = y.reshape(len(group.rows), n, -1, c.ssm_state_size)
        n_k = c.ssm_group_count
        q = self._spread(self._unit(heads[:, :, :n_k]))
        k = self._spread(self._unit(heads[:, :, n_k : 2 * n_k]))
        return q, k, heads[:, :, 2 * n_k :], history

    def _unit(self, x: mx.array) -> mx.array:
        return x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) + self.config.rms_eps)

    def _spread(self, x: mx.array) -> mx.array:
        """K heads onto V heads: V head h reads h mod H_k (tiled) or h div r (grouped)."""
        c = self.config
        repeats = c.ssm_time_step_rank // c.ssm_group_count
        if c.tiled_v_heads:
            return mx.concatenate([x] * repeats, axis=2)
        return mx.repeat(x, repeats, axis=2)

    # -- attention ----------------------------------------------------------------------------

    def attend(self, block: dict[str, Any], x: mx.array, plan: Plan, index: int) -> mx.array:
        c = self.config
        h = self._norm(x, block["attn_norm.weight"])
        qg, k, v = self._project_qkv(block, h)
        q, gate = qg[..., : c.head_dim], qg[..., c.head_dim :]
        q = _rotate(self._norm(q, block["attn_q_norm.weight"]), plan.cos, plan.sin)
        k = _rotate(self._norm(k, block["attn_k_norm.weight"]), plan.cos, plan.sin)
        outputs = []
        for group in plan.groups:
            at = group.first
            for row in group.rows:
                span = slice(at, at + len(row))
                self._write_kv(row, k[span], v[span], plan.store, index)
                outputs.append(self._attend_row(row, q[span], plan.store, index))
                at += len(row)
        o = mx.concatenate(outputs) * mx.sigmoid(gate)
        mixed: mx.array = block["attn_output.weight"](o.reshape(o.shape[0], -1))
        return x + mixed

    def _project_qkv(self, block: dict[str, Any], h: mx.array) -> tuple[mx.array, ...]:
        c, n = self.config, h.shape[0]
        if "attn_qkv.weight" in block:
            n_q, n_kv = 2 * c.head_dim * c.n_head, c.head_dim * c.n_head_kv
            parts = list(mx.split(block["attn_qkv.weight"](h), [n_q, n_q + n_kv], axis=-1))
        else:
            parts = [block[f"attn_{name}.weight"](h) for name in "qkv"]
        heads = (c.n_head, c.n_head_kv, c.n_head_kv)
        return tuple(p.reshape(n, m, -1) for p, m in zip(parts, heads, strict=True))

    def _write_kv(self, row: Row, k: mx.array, v: mx.array, store: MlxStore, index: int) -> None:
        for first, end in _pieces(row.start, len(row), BLOCK):
            block = int(row.blocks[(row.start + first) // BLOCK])
            at = (row.start + first) % BLOCK
            for cache, new in ((store.k[index], k), (store.v[index], v)):
                store.update_block(cache, block, at, new[first:end])

    def _attend_row(self, row: Row, q: mx.array, store: MlxStore, index: int) -> mx.array:
        """o [n, n_head, head_dim]. Queries go in pieces at absolute multiples of ``CHUNK``, each
        over exactly the cells up to its own end, whatever the prompt was cut into."""
        blocks = [int(b) for b in row.blocks]
        keys = mx.concatenate([store.block(store.k[index], b) for b in blocks])
        values = mx.concatenate([store.block(store.v[index], b) for b in blocks])
        outputs = []
        for first, end in _pieces(row.start, len(row)):
            n_past = row.start + end
            past_k, past_v = keys[:n_past].astype(q.dtype), values[:n_past].astype(q.dtype)
            outputs.append(self._attend_piece(q[first:end], past_k, past_v))
        return mx.concatenate(outputs)

    def _attend_piece(self, q: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        """Causal attention, the last query at the last key. q [n, n_head, d]; keys [L, n_kv, d]."""
        c = self.config
        n, length = q.shape[0], keys.shape[0]
        grouped = q.reshape(n, c.n_head_kv, -1, c.head_dim).transpose(1, 2, 0, 3)
        scores = (grouped @ keys.transpose(1, 2, 0)[:, None]) * c.attention_scale
        seen = mx.arange(length) <= (mx.arange(n) + length - n)[:, None]
        weights = mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1, precise=True)
        o = weights @ values.transpose(1, 0, 2)[:, None]
        return o.transpose(2, 0, 1, 3).reshape(n, c.n_head, c.head_dim)

    # -- feed forward -------------------------------------------------------------------------

    def feed_forward(self, block: dict[str, Any], x: mx.array, plan: Plan) -> mx.array:
        y = self._norm(x, block["post_attention_norm.weight"])
        if not self.config.n_expert:
            return x + _swiglu(block, "", y)
        return x + self._experts(block, y) + self._shared_expert(block, y)

    def _experts(self, block: dict[str, Any], y: mx.array) -> mx.array:
        c = self.config
        p = mx.softmax(block["ffn_gate_inp.weight"](y), axis=-1, precise=True)
        chosen = mx.argsort(-p, axis=-1)[:, : c.n_expert_used]
        w = mx.take_along_axis(p, chosen, axis=-1)
        w = w / mx.maximum(w.sum(axis=-1, keepdims=True), 2.0**-14)
        if c.expert_weights_scale not in (0.0, 1.0):
            w = w * c.expert_weights_scale
        if "ffn_gate_up_exps.weight" in block:
            gate, up = mx.split(block["ffn_gate_up_exps.weight"].gather(y, chosen), 2, axis=-1)
        else:
            gate = block["ffn_gate_exps.weight"].gather(y, chosen)
            up = block["ffn_up_exps.weight"].gather(y, chosen)
        down = block["ffn_down_exps.weight"].gather(_silu(gate) * up, chosen) * w[..., None]
        total: mx.array = down[:, 0]
        for rank in range(1, c.n_expert_used):
            total = total + down[:, rank]
        return total

    def _shared_expert(self, block: dict[str, Any], y: mx.array) -> mx.array:
        if "ffn_up_shexp.weight" not in block:
            return mx.zeros_like(y)
        gate = block["ffn_gate_inp_shexp.weight"]
        scalar = y @ gate.reshape(-1, 1) if isinstance(gate, mx.array) else gate(y)
        return mx.sigmoid(scalar) * _swiglu(block, "_shexp", y)


def _delta_piece(cut: list[mx.array], state: mx.array) -> tuple[mx.array, mx.array]:
    """q, k, v [B, n, H, D], g, beta [B, n, H] within one ``CHUNK``; B = 1 unless n = 1."""
    q, k, v, g, beta = cut
    if q.shape[1] == 1:
        o, state = delta_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], state)
        return o[:, None], state
    n = q.shape[1]
    q_c, k_c, v_c = (_into_chunks(a[0], n) for a in (q, k, v))
    g_c, beta_c = (_into_chunks(a[0][..., None], n)[..., 0] for a in (g, beta))
    o, new = delta_chunks(q_c, k_c, v_c, g_c, beta_c, state[0])
    return o.transpose(0, 2, 1, 3).reshape(1, -1, *q.shape[2:])[:, :n], new[None]


def _into_chunks(a: mx.array, n: int) -> mx.array:
    """[n, H, D] zero-padded to whole chunks: [N, H, C, D]."""
    padded = mx.pad(a, [(0, -n % DELTA_CHUNK), (0, 0), (0, 0)])
    return padded.reshape(-1, DELTA_CHUNK, *a.shape[1:]).transpose(0, 2, 1, 3)


def _pieces(start: int, n: int, grid: int = CHUNK) -> list[tuple[int, int]]:
    """Cut tokens 0 ... n, the first at position ``start``, at absolute multiples of ``grid``."""
    cuts = [0, *range(grid - start % grid, n, grid), n] if n else [0]
    return list(zip(cuts, cuts[1:], strict=False))


def _rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """Partial NEOX rope: pairs (i, i + n_rot / 2) of the first n_rot dims. x [n, heads, d]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    return mx.concatenate([a * cos - b * sin, a * sin + b * cos, rest], axis=-1)


def _softplus(x: mx.array) -> mx.array:
    return mx.where(x > 20, x, mx.log1p(mx.exp(mx.minimum(x, 20))))


def _silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _swiglu(block: dict[str, Any], suffix: str, y: mx.array) -> mx.array:
    gate = block[f"ffn_gate{suffix}.weight"](y)
    return block[f"ffn_down{suffix}.weight"](  # type: ignore[no-any-return]
        _silu(gate) * block[f"ffn_up{suffix}.weight"](y)
    )
