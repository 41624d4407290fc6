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
from gguf_hybrid.metal.apple import Kernels
from gguf_hybrid.step import BLOCK, CHUNK, Row, Step
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.reader import TensorInfo

from .base import Floats, StoreSpec, Tensors
from .kernel_choice import KernelChoice
from .mlx_choice import checked
from .mlx_delta import delta_piece, delta_step
from .mlx_linear import Linear, linear_of, vector_of
from .mlx_own import OwnOperations, RawBlocks, RawLinear, attends, raw_of
from .mlx_stock import (
    DeltaWeights,
    StockOperations,
    attend_piece,
    decays,
    fused_delta,
    has_fused_delta,
    silu,
)
from .mlx_store import MlxStore
from .rope import rope_of

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
    """``gguf_hybrid.backend.base.Backend`` in MLX, float32 throughout.

    Without ``choice`` everything is stock MLX; with it, own Metal kernels stand in for operations
    (``mlx_choice``). Raises BackendError if one that was asked for by name fails its check.
    """

    kernel_types = frozenset(GGMLType)

    def __init__(
        self, config: ModelConfig, device: mx.DeviceType, choice: KernelChoice | None = None
    ) -> None:
        mx.set_default_device(mx.Device(device))
        self.config = config
        if mx.metal.is_available() and device == mx.gpu:
            # Weights must stay resident, or macOS pages them out between requests.
            mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))
        mx.set_cache_limit(CACHE_LIMIT)
        self.name = f"mlx ({mx.default_device().type.name})"
        self._fused = mx.metal.is_available() and device == mx.gpu
        self._stock = StockOperations(config, self._fused)
        self._kernels = Kernels()
        self._own = OwnOperations(config, self._kernels)
        self.own = checked(choice, config, self._stock, self._own, self._kernels)
        self._rope = rope_of(config)
        self._weights: list[Linear | mx.array] = []

    # -- weights ------------------------------------------------------------------------------

    def prepare_embedding(self, token_embd: TensorInfo) -> Linear:
        embedding: Linear = self._keep(self._matrix(token_embd))
        return embedding

    def prepare_block(self, layer: int, tensors: Tensors) -> dict[str, Any]:
        """Matrices as ``Linear``, vectors and the convolution as float32 arrays, expert stacks as
        ``RawBlocks`` where an own kernel reads them."""
        block: dict[str, Any] = {}
        own_stacks = self.own.stacks(tensors)
        for name, tensor in tensors.items():
            if len(tensor.shape) == 1 or name == "ssm_conv1d.weight":
                weight: Any = vector_of(tensor)
            elif name in own_stacks:
                weight = raw_of(tensor)
            elif len(tensor.shape) > 2:
                weight = linear_of(tensor)
            else:
                weight = self._matrix(tensor)
            block[name] = self._keep(weight)
        return block

    def _matrix(self, tensor: TensorInfo) -> Linear:
        if self.own.takes("matvec", tensor):
            return RawLinear(self._kernels, raw_of(tensor))
        return linear_of(tensor)

    def prepare_head(
        self, output_norm: TensorInfo, output: TensorInfo, embedding: Linear
    ) -> tuple[mx.array, Linear]:
        tied = output.name == "token_embd.weight"
        head = embedding if tied else self._keep(self._matrix(output))
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
        alpha, beta = block["ssm_alpha.weight"](h), block["ssm_beta.weight"](h)
        w = DeltaWeights(block["ssm_conv1d.weight"], block["ssm_dt.bias"], block["ssm_a"])
        parts = []
        for group in plan.groups:
            span = slice(group.first, group.end)
            mix = self._mix_singles if group.n == 1 else self._mix
            parts.append(mix(group, qkv[span], alpha[span], beta[span], w, plan.store, index))
        o = self._norm(mx.concatenate(parts), block["ssm_norm.weight"])
        o = o * silu(z.reshape(o.shape))
        mixed: mx.array = block["ssm_out.weight"](o.reshape(-1, c.value_dim))
        return x + mixed

    def _mix_singles(
        self, group: Group, qkv: mx.array, alpha: mx.array, beta: mx.array, w: DeltaWeights,
        store: MlxStore, index: int,
    ) -> mx.array:  # fmt: skip
        """Convolution and delta rule of rows of one token; o [rows, H_v, D]."""
        read = tuple(row.state_read for row in group.rows)
        write = tuple(row.state_write[0] for row in group.rows)
        conv, delta = store.conv[index].read(read), store.delta[index].read(read)
        operations = self._own if "delta_step" in self.own.names else self._stock
        after = operations.delta_step(qkv, alpha, beta, w, conv, delta)
        store.conv[index].write(write, after.conv)
        store.delta[index].write(write, after.delta)
        return after.o

    def _mix(
        self, group: Group, qkv: mx.array, alpha: mx.array, beta: mx.array, w: DeltaWeights,
        store: MlxStore, index: int,
    ) -> mx.array:  # fmt: skip
        """The same of one longer row; o [tokens, H_v, D]."""
        (row,) = group.rows
        before = store.conv[index].read((row.state_read,))
        q, k, v, history = self._stock.convolve(qkv[None], w.taps, before)
        g, beta = decays(alpha, w)[None], mx.sigmoid(beta)[None]
        state = store.delta[index].read((row.state_read,))
        n_states = len(row.state_write)
        outputs = []
        tail = group.n - n_states + 1
        for first, end in _pieces(row.start, tail):
            o, state = self._delta_piece([a[:, first:end] for a in (q, k, v, g, beta)], state)
            outputs.append(o)
        self._write_states(group, history, state, tail, 0, store, index)
        for t in range(tail, group.n):
            o, state = delta_step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], state)
            outputs.append(o[:, None])
            self._write_states(group, history, state, t + 1, t + 1 - tail, store, index)
        return mx.concatenate(outputs, axis=1)[0]

    def _delta_piece(self, cut: list[mx.array], state: mx.array) -> tuple[mx.array, mx.array]:
        if self._fused and has_fused_delta(self.config):
            q, k, v, g, beta = cut
            return fused_delta(q, k, v, g, beta, state)
        return delta_piece(cut, state)

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
        key_blocks, value_blocks = (
            [store.block(cache, b) for b in blocks] for cache in (store.k[index], store.v[index])
        )
        if len(row) == 1:
            own = "attend" in self.own.names and attends(self.config, store.spec.kv_type)
            operations = self._own if own else self._stock
            return operations.attend(q[0], key_blocks, value_blocks, row.end)[None]
        keys, values = mx.concatenate(key_blocks), mx.concatenate(value_blocks)
        outputs = []
        for first, end in _pieces(row.start, len(row)):
            n_past = row.start + end
            past_k, past_v = keys[:n_past].astype(q.dtype), values[:n_past].astype(q.dtype)
            outputs.append(attend_piece(self.config, q[first:end], past_k, past_v))
        return mx.concatenate(outputs)

    # -- feed forward -------------------------------------------------------------------------

    def feed_forward(self, block: dict[str, Any], x: mx.array, plan: Plan) -> mx.array:
        y = self._norm(x, block["post_attention_norm.weight"])
        if not self.config.n_expert:
            return x + _swiglu(block, "", y)
        return x + self._experts(block, y) + self._shared_expert(block, y)

    def _experts(self, block: dict[str, Any], y: mx.array) -> mx.array:
        logits = block["ffn_gate_inp.weight"](y)
        router = self._own if "top_experts" in self.own.names else self._stock
        chosen, weights = router.top_experts(logits)
        fused = block.get("ffn_gate_up_exps.weight")
        gate = block["ffn_gate_exps.weight"] if fused is None else fused
        up = block["ffn_up_exps.weight"] if fused is None else None
        down = block["ffn_down_exps.weight"]
        h = self._operations(gate).gate_up(y, chosen, gate, up)
        total: mx.array = self._operations(down).down(h, chosen, weights, down)
        return total

    def _operations(self, stack: Linear | RawBlocks) -> Any:
        """Own operations for weights that were loaded for them."""
        return self._own if isinstance(stack, RawBlocks) else self._stock

    def _shared_expert(self, block: dict[str, Any], y: mx.array) -> mx.array:
        if "ffn_up_shexp.weight" not in block:
            return mx.zeros_like(y)
        gate = block["ffn_gate_inp_shexp.weight"]
        scalar = y @ gate.reshape(-1, 1) if isinstance(gate, mx.array) else gate(y)
        return mx.sigmoid(scalar) * _swiglu(block, "_shexp", y)


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


def _swiglu(block: dict[str, Any], suffix: str, y: mx.array) -> mx.array:
    gate = block[f"ffn_gate{suffix}.weight"](y)
    return block[f"ffn_down{suffix}.weight"](  # type: ignore[no-any-return]
        silu(gate) * block[f"ffn_up{suffix}.weight"](y)
    )
