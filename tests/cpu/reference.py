"""Every operation of the model in plain float64 NumPy, one sequence at a time, nothing clever.

Written from the equations (qwen35_gguf.md, section 3). ``x`` is [n, n_embd]; weights are those of
``step_models``, by GGUF name.
"""

import numpy as np

from gguf_hybrid.backend.rope import rope_of
from gguf_hybrid.config import ModelConfig

from .step_models import Arrays, Doubles


def rms(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


def silu(x: Doubles) -> Doubles:
    return x * sigmoid(x)


def unit(x: Doubles, eps: float) -> Doubles:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + eps)


def doubles(arrays: Arrays) -> dict[str, Doubles]:
    return {name: a.astype(np.float64) for name, a in arrays.items()}


def gated_delta_net(
    c: ModelConfig, arrays: Arrays, x: Doubles, conv: Doubles, delta: Doubles
) -> tuple[Doubles, list[tuple[Doubles, Doubles]]]:
    """The output and the states (convolution, delta) after each token.

    conv [ssm_conv_kernel - 1, conv_dim], delta [V head, v, k].
    """
    w = doubles(arrays)
    h = rms(x, w["attn_norm.weight"], c.rms_eps)
    inputs = np.concatenate([conv, h @ w["attn_qkv.weight"].T])
    z = (h @ w["attn_gate.weight"].T).reshape(len(x), -1, c.ssm_state_size)
    beta = sigmoid(h @ w["ssm_beta.weight"].T)
    decay = np.exp(np.log1p(np.exp(h @ w["ssm_alpha.weight"].T + w["ssm_dt.bias"])) * w["ssm_a"])
    taps, n_k, states, outputs = c.ssm_conv_kernel, c.ssm_group_count, [], []
    for t in range(len(x)):
        y = silu((inputs[t : t + taps] * w["ssm_conv1d.weight"].T).sum(0))
        heads = y.reshape(-1, c.ssm_state_size)
        q, k, v = (
            unit(heads[:n_k], c.rms_eps),
            unit(heads[n_k : 2 * n_k], c.rms_eps),
            heads[2 * n_k :],
        )
        k_heads = _k_heads(c)
        delta, o = _delta_step(delta, q[k_heads], k[k_heads], v, decay[t], beta[t])
        o = rms(o / np.sqrt(c.ssm_state_size), w["ssm_norm.weight"], c.rms_eps) * silu(z[t])
        outputs.append(w["ssm_out.weight"] @ o.reshape(-1))
        states.append((inputs[t + 1 : t + taps], delta))
    return x + np.stack(outputs), states


def _k_heads(c: ModelConfig) -> list[int]:
    """The K head of each V head."""
    heads = range(c.ssm_time_step_rank)
    if c.tiled_v_heads:
        return [h % c.ssm_group_count for h in heads]
    return [h // c.v_heads_per_k_head for h in heads]


def _delta_step(
    m: Doubles, q: Doubles, k: Doubles, v: Doubles, decay: Doubles, beta: Doubles
) -> tuple[Doubles, Doubles]:
    m = m * decay[:, None, None]
    d = beta[:, None] * (v - np.einsum("hvk,hk->hv", m, k))
    m = m + d[:, :, None] * k[:, None, :]
    return m, np.einsum("hvk,hk->hv", m, q)


def attend(c: ModelConfig, arrays: Arrays, x: Doubles, kv_type: type = np.float64) -> Doubles:
    """A whole sequence from position 0; K and V are rounded to ``kv_type``."""
    w = doubles(arrays)
    n, d = len(x), c.head_dim
    h = rms(x, w["attn_norm.weight"], c.rms_eps)
    qg = (h @ w["attn_q.weight"].T).reshape(n, c.n_head, 2 * d)
    k = (h @ w["attn_k.weight"].T).reshape(n, c.n_head_kv, d)
    v = (h @ w["attn_v.weight"].T).reshape(n, c.n_head_kv, d)
    q = _rotate(c, rms(qg[..., :d], w["attn_q_norm.weight"], c.rms_eps))
    k = _rotate(c, rms(k, w["attn_k_norm.weight"], c.rms_eps))
    k, v = (a.astype(kv_type).astype(np.float64) for a in (k, v))
    group = c.n_head // c.n_head_kv
    scores = np.einsum("qhd,khd->hqk", q, k.repeat(group, 1)) * c.attention_scale
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    o = np.einsum("hqk,khd->qhd", weights, v.repeat(group, 1)) * sigmoid(qg[..., d:])
    return x + o.reshape(n, -1) @ w["attn_output.weight"].T


def _rotate(c: ModelConfig, x: Doubles) -> Doubles:
    rope, half = rope_of(c), c.n_rot // 2
    angles = np.arange(len(x))[:, None, None] * rope.inv_freq
    cos, sin = np.cos(angles) * rope.magnitude, np.sin(angles) * rope.magnitude
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos, rest], -1)


def feed_forward(c: ModelConfig, arrays: Arrays, x: Doubles) -> Doubles:
    w = doubles(arrays)
    y = rms(x, w["post_attention_norm.weight"], c.rms_eps)
    if not c.is_moe:
        return x + _swiglu(w, "", y)
    return x + np.stack([_experts(c, w, row) for row in y])


def _experts(c: ModelConfig, w: dict[str, Doubles], y: Doubles) -> Doubles:
    logits = w["ffn_gate_inp.weight"] @ y
    p = np.exp(logits - logits.max())
    p /= p.sum()
    chosen = np.argsort(-p, kind="stable")[: c.n_expert_used]
    weights = p[chosen] / max(p[chosen].sum(), 2.0**-14) * (c.expert_weights_scale or 1.0)
    total = np.zeros_like(y)
    for e, weight in zip(chosen, weights, strict=True):
        gate, up = w["ffn_gate_exps.weight"][e] @ y, w["ffn_up_exps.weight"][e] @ y
        total += weight * (w["ffn_down_exps.weight"][e] @ (silu(gate) * up))
    if c.n_ff_shexp:
        total += sigmoid(w["ffn_gate_inp_shexp.weight"] @ y) * _swiglu(w, "_shexp", y)
    return total


def _swiglu(w: dict[str, Doubles], suffix: str, y: Doubles) -> Doubles:
    gate, up = y @ w[f"ffn_gate{suffix}.weight"].T, y @ w[f"ffn_up{suffix}.weight"].T
    return (silu(gate) * up) @ w[f"ffn_down{suffix}.weight"].T
