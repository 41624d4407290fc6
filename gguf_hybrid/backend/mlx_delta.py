"""The gated delta rule in plain MLX: one token at a time, and in parallel over chunks.

Per V head, with state ``S`` [D_v, D_k] (k fastest), all float32 (Yang et al., arXiv 2412.06464):

    S <- exp(g) S;   d = beta (v - S k);   S <- S + d k^T;   o = S q / sqrt(D)

Both forms take q and k already unit length and already spread over the V heads.
"""

import math

import mlx.core as mx

DELTA_CHUNK = 16
"""Tokens per chunk of the delta rule; divides ``CHUNK``. On a CPU small chunks win: the work inside
a chunk grows with its length squared."""


def delta_step(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """One token for a batch. q, k, v [B, H, D]; g, beta [B, H]; state [B, H, D, D].

    Returns o [B, H, D] and the new state.
    """
    state = state * mx.exp(g)[..., None, None]
    seen = (state @ k[..., None])[..., 0]
    d = beta[..., None] * (v - seen)
    state = state + d[..., None] * k[..., None, :]
    o = (state @ q[..., None])[..., 0]
    return o / math.sqrt(q.shape[-1]), state


def delta_chunks(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Whole chunks of one sequence. q, k, v [N, H, C, D]; g, beta [N, H, C]; state [H, D, D].

    Pad tokens have q = k = v = 0, beta = 0, g = 0 and leave the state unchanged. Everything that
    does not depend on the state is computed for all N chunks at once.
    Returns o [N, H, C, D] and the state after the last chunk.
    """
    n_chunks, _, c, size = q.shape
    q = q / math.sqrt(size)
    total = mx.cumsum(g, axis=-1)
    later = mx.tril(mx.ones((c, c), dtype=mx.bool_))
    gap = mx.where(later, total[..., :, None] - total[..., None, :], -mx.inf)
    decay = mx.exp(gap)
    keys = k * beta[..., None]
    inverse = _unit_lower_inverse(mx.tril((keys @ k.swapaxes(-1, -2)) * decay, -1))
    values = inverse @ (v * beta[..., None])
    weights = inverse @ (keys * mx.exp(total)[..., None])
    scores = (q @ k.swapaxes(-1, -2)) * decay
    reads = q * mx.exp(total)[..., None]
    last = total[..., -1:]
    writes = k * mx.exp(last - total)[..., None]
    outputs = []
    for n in range(n_chunks):
        new = values[n] - weights[n] @ state.swapaxes(-1, -2)
        outputs.append(reads[n] @ state.swapaxes(-1, -2) + scores[n] @ new)
        state = state * mx.exp(last[n])[..., None] + new.swapaxes(-1, -2) @ writes[n]
    return mx.stack(outputs), state


def delta_piece(cut: list[mx.array], state: mx.array) -> tuple[mx.array, mx.array]:
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


def _unit_lower_inverse(a: mx.array) -> mx.array:
    """(I + A)^-1 for strictly lower A [..., C, C], as the product of (I + (-A)^(2^k)): A^C = 0."""
    c = a.shape[-1]
    power = -a
    result = mx.eye(c) + power
    width = 2
    while width < c:
        power = power @ power
        result = result + result @ power
        width *= 2
    return result
