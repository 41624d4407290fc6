"""The switchable operations of the MLX backend in stock MLX; ``mlx_own`` has each as a kernel.

Everything is float32 and a row's result does not depend on the others. ``fused`` takes MLX's own
fused forms (attention, gated delta rule), which are kernels on Metal: head dim 256 for few queries,
and head counts of ``FUSED_HEADS``. Elsewhere MLX falls back to plain operations for them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from gguf_hybrid.config import ModelConfig

from .mlx_delta import delta_step
from .mlx_linear import Linear

FUSED_HEADS = frozenset({16, 24, 32})
"""Equal numbers of K and V heads for which MLX 0.32.4 has a Metal gated-delta kernel; D = 128."""


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """taps [C, KC] of the convolution's C channels; dt_bias and a [H_v]."""

    taps: mx.array
    dt_bias: mx.array
    a: mx.array


class DeltaRows(NamedTuple):
    """o [B, H_v, D], and the states after the token: conv [B, KC - 1, C], delta [B, H_v, D, D]."""

    o: mx.array
    conv: mx.array
    delta: mx.array


def has_fused_delta(config: ModelConfig) -> bool:
    """Whether MLX's fused delta rule is a kernel on Metal for heads spread to H_v."""
    return config.ssm_state_size == 128 and config.ssm_time_step_rank in FUSED_HEADS


class StockOperations:
    """In plain MLX."""

    def __init__(self, config: ModelConfig, fused: bool) -> None:
        self.config = config
        self._fused = fused

    def top_experts(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """Router logits [T, E]: the chosen experts int32 [T, k] in rank order, ties to the lower
        index, and their weights [T, k]."""
        c = self.config
        p = mx.softmax(logits, axis=-1, precise=True)
        chosen = mx.argsort(-p, axis=-1)[:, : c.n_expert_used].astype(mx.int32)
        w = mx.take_along_axis(p, chosen, axis=-1)
        w = w / mx.maximum(w.sum(axis=-1, keepdims=True), 2.0**-14)
        if c.expert_weights_scale not in (0.0, 1.0):
            w = w * c.expert_weights_scale
        return chosen, w

    def gate_up(self, y: mx.array, chosen: mx.array, gate: Linear, up: Linear | None) -> mx.array:
        """silu(gate y) * up y of y [T, n_embd] for experts ``chosen`` [T, k]: [T, k, n_ff].
        Without ``up`` the first half of ``gate`` is the gate."""
        if up is None:
            left, right = mx.split(gate.gather(y, chosen), 2, axis=-1)
        else:
            left, right = gate.gather(y, chosen), up.gather(y, chosen)
        return silu(left) * right

    def down(self, h: mx.array, chosen: mx.array, weights: mx.array, down: Linear) -> mx.array:
        """The experts' outputs of h [T, k, n_ff], weighted and added in rank order: [T, n_embd]."""
        parts = down.gather(h, chosen) * weights[..., None]
        total: mx.array = parts[:, 0]
        for rank in range(1, chosen.shape[1]):
            total = total + parts[:, rank]
        return total

    def delta_step(
        self, qkv: mx.array, alpha: mx.array, beta: mx.array, w: DeltaWeights, conv: mx.array,
        delta: mx.array,
    ) -> DeltaRows:  # fmt: skip
        """One token of a Gated DeltaNet layer for each row, from projections qkv [B, C], alpha and
        beta [B, H_v] (before their activations) and the states before."""
        q, k, v, history = self.convolve(qkv[:, None], w.taps, conv)
        decay, rate = decays(alpha, w), mx.sigmoid(beta)
        if self._fused and has_fused_delta(self.config):
            o, delta = fused_delta(q, k, v, decay[:, None], rate[:, None], delta)
            return DeltaRows(o[:, 0], history[:, 1:], delta)
        o, delta = delta_step(q[:, 0], k[:, 0], v[:, 0], decay, rate, delta)
        return DeltaRows(o, history[:, 1:], delta)

    def convolve(
        self, qkv: mx.array, taps: mx.array, before: mx.array
    ) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Causal depthwise convolution with SiLU of qkv [B, n, C]: q, k, v [B, n, H_v, D], q and k
        of unit length and spread over the V heads, and the inputs with those ``before`` them."""
        c = self.config
        n = qkv.shape[1]
        history = mx.concatenate([before, qkv], axis=1)
        y = history[:, :n] * taps[:, 0]
        for i in range(1, c.ssm_conv_kernel):
            y = y + history[:, i : i + n] * taps[:, i]
        heads = silu(y).reshape(len(qkv), n, -1, c.ssm_state_size)
        n_k = c.ssm_group_count
        q = self._spread(self._unit(heads[:, :, :n_k]))
        k = self._spread(self._unit(heads[:, :, n_k : 2 * n_k]))
        return q, k, heads[:, :, 2 * n_k :], history

    def attend(
        self, q: mx.array, keys: Sequence[mx.array], values: Sequence[mx.array], length: int
    ) -> mx.array:
        """Attention of one query q [H, D] over the first ``length`` cells of KV blocks
        [BLOCK, H_kv, D]: [H, D]."""
        past_k, past_v = (mx.concatenate(list(b))[:length].astype(q.dtype) for b in (keys, values))
        if not self._fused:
            return attend_piece(self.config, q[None], past_k, past_v)[0]
        o: mx.array = mx.fast.scaled_dot_product_attention(
            q[None, :, None],
            past_k.transpose(1, 0, 2)[None],
            past_v.transpose(1, 0, 2)[None],
            scale=self.config.attention_scale,
        )
        return o[0, :, 0]

    def _unit(self, x: mx.array) -> mx.array:
        return x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) + self.config.rms_eps)

    def _spread(self, x: mx.array) -> mx.array:
        """K heads onto V heads: V head h reads h mod H_k (tiled) or h div r (grouped)."""
        c = self.config
        repeats = c.ssm_time_step_rank // c.ssm_group_count
        if c.tiled_v_heads:
            return mx.concatenate([x] * repeats, axis=2)
        return mx.repeat(x, repeats, axis=2)


def fused_delta(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """MLX's gated delta rule over n tokens. q, k, v [B, n, H, D]; g (log decay), beta [B, n, H];
    state [B, H, D, D]. Returns o [B, n, H, D] and the new state."""
    o, new = mx.fast.gated_delta_update(q / math.sqrt(q.shape[-1]), k, v, mx.exp(g), beta, state)
    return o, new


def attend_piece(c: ModelConfig, q: mx.array, keys: mx.array, values: mx.array) -> mx.array:
    """Causal attention, the last query at the last key. q [n, n_head, d]; keys [L, n_kv, d]."""
    n, length = q.shape[0], keys.shape[0]
    grouped = q.reshape(n, c.n_head_kv, -1, c.head_dim).transpose(1, 2, 0, 3)
    scores = (grouped @ keys.transpose(1, 2, 0)[:, None]) * c.attention_scale
    seen = mx.arange(length) <= (mx.arange(n) + length - n)[:, None]
    weights = mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1, precise=True)
    o = weights @ values.transpose(1, 0, 2)[:, None]
    return o.transpose(2, 0, 1, 3).reshape(n, c.n_head, c.head_dim)


def decays(alpha: mx.array, w: DeltaWeights) -> mx.array:
    """Log decay of each head: softplus(alpha + dt_bias) * a."""
    return softplus(alpha + w.dt_bias) * w.a


def softplus(x: mx.array) -> mx.array:
    return mx.where(x > 20, x, mx.log1p(mx.exp(mx.minimum(x, 20))))


def silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)
