"""Cases, as in ``kernel_cases``, of the bodies with float32 activations and of their neighbours."""

import numpy as np
from gguf_hybrid.metal.kernel import Body
from gguf_hybrid.metal.shim import run

from gguf_hybrid.weights.ggml import GGMLType

from .kernel_references import EPS, delta_rule, error, sigmoid, silu, weight

T = GGMLType
TYPES = (T.Q4_0, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K)


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def _empty(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def raw_matvec(body: Body) -> float:
    """Each type, rows that fill no tile; and a row alone is the row among others."""
    rng, k, n, rows, worst = np.random.default_rng(5), 512, 21, 5, 0.0
    x = _floats(rng, rows, k)
    for i, t in enumerate(TYPES):
        blocks, values = weight(rng, t, n, k)
        per_simd = 2 + 2 * (i % 2)
        constants = {"K": k, "N": n, "T0": int(t), "R": per_simd}
        groups = _ceil(n, 2 * per_simd)
        y, alone = _empty(rows, n), _empty(1, n)
        run(body, constants | {"NB": 4}, [x, blocks, y, rows], (groups, 2, 1), 64)
        run(body, constants | {"NB": 1}, [x[3:4], blocks, alone, 1], (groups, 1, 1), 64)
        same = 0.0 if np.array_equal(alone[0], y[3]) else 1.0
        worst = max(worst, same, error(y, x.astype(np.float64) @ values.T))
    return worst


def raw_gate_up(body: Body) -> float:
    """Two stacks of different types, and one that holds both halves; a width that fills no tile."""
    rng, n, k, f, k_used, experts = np.random.default_rng(6), 2, 256, 21, 2, 3
    x = _floats(rng, n, k)
    chosen = np.array([[2, 0], [0, 1]], np.int32)
    order = np.argsort(chosen.ravel(), kind="stable").astype(np.int32)
    (gate, g), (up, u) = (weight(rng, t, experts * f, k) for t in (T.Q4_K, T.Q6_K))
    both, gu = weight(rng, T.Q5_K, experts * 2 * f, k)
    gu = gu.reshape(experts, 2, f, k)
    forms = [
        (gate, up, T.Q4_K, T.Q6_K, f, 0, g.reshape(experts, f, k), u.reshape(experts, f, k)),
        (both, both, T.Q5_K, T.Q5_K, 2 * f, f, gu[:, 0], gu[:, 1]),
    ]
    worst = 0.0
    for first, second, t0, t1, rows, up_at, wg, wu in forms:
        h = _empty(n, k_used, f)
        sizes = {"K": k, "F": f, "K_USED": k_used, "T0": int(t0), "T1": int(t1)}
        constants = sizes | {"ROWS": rows, "UP_AT": up_at, "R": 2}
        run(body, constants, [x, chosen, order, first, second, h], (4, _ceil(f, 4), 1), 64)
        wanted = silu(np.einsum("tk,trfk->trf", x, wg[chosen]))
        worst = max(worst, error(h, wanted * np.einsum("tk,trfk->trf", x, wu[chosen])))
    return worst


def raw_down(body: Body) -> float:
    rng, n, f, out, k_used, experts = np.random.default_rng(7), 2, 256, 21, 2, 3
    h, weights = _floats(rng, n, k_used, f), np.abs(_floats(rng, n, k_used))
    chosen = np.array([[2, 0], [0, 1]], np.int32)
    worst = 0.0
    for t in (T.Q6_K, T.Q4_K):
        stack, values = weight(rng, t, experts * out, f)
        y = _empty(n, out)
        constants = {"F": f, "N": out, "K_USED": k_used, "T0": int(t), "R": 2}
        run(body, constants, [h, chosen, weights, stack, y], (n, _ceil(out, 4), 1), 64)
        experts_of = values.reshape(experts, out, f)[chosen]
        worst = max(worst, error(y, np.einsum("tr,trf,trnf->tn", weights, h, experts_of)))
    return worst


def delta_rows(body: Body) -> float:
    """Two rows, both head pairings, a state of two slices."""
    worst = 0.0
    for tiled in (1, 0):
        rng, d, hk, hv, n = np.random.default_rng(8), 64, 2, 4, 2
        conv_dim = (2 * hk + hv) * d
        qkv, alpha, beta = _floats(rng, n, conv_dim), _floats(rng, n, hv), _floats(rng, n, hv)
        taps, bias, a = _floats(rng, conv_dim, 4), _floats(rng, hv), -np.exp(_floats(rng, hv))
        conv, delta = _floats(rng, n, 3, conv_dim), _floats(rng, n, hv, d, d)
        new_conv, new_delta, y = _empty(n, 3, conv_dim), _empty(n, hv, d, d), _empty(n, hv, d)
        constants = {"D": d, "HK": hk, "HV": hv, "KC": 4, "TILED": tiled, "EPS": EPS}
        arguments = [qkv, alpha, beta, taps, bias, a, conv, delta, new_conv, new_delta, y]
        run(body, constants, arguments, (hv, d // 32, n), 256)
        history = np.concatenate([conv, qkv[:, None]], axis=1)
        mixed = silu((history.astype(np.float64) * taps.T).sum(1)).reshape(n, -1, d)
        norms = np.sqrt((mixed[:, : 2 * hk] ** 2).sum(-1, keepdims=True) + EPS)
        mixed[:, : 2 * hk] /= norms
        decay = np.exp(np.log1p(np.exp((alpha + bias).astype(np.float64))) * a)
        rate = sigmoid(beta)
        worst = max(worst, error(new_conv, history[:, 1:]))
        for b in range(n):
            for h in range(hv):
                kh = h % hk if tiled else h // (hv // hk)
                o, states = delta_rule(
                    mixed[b : b + 1, kh], mixed[b : b + 1, hk + kh], mixed[b : b + 1, 2 * hk + h],
                    decay[b : b + 1, h], rate[b : b + 1, h], delta[b, h].astype(np.float64),
                )  # fmt: skip
                worst = max(worst, error(new_delta[b, h], states[0]), error(y[b, h], o[0]))
    return worst


def attend_blocks(body: Body) -> float:
    """One key, a full block, a key more than a block; three heads a KV head; D 64 and 256."""
    worst = 0.0
    for d, heads, kv_heads, length in ((64, 6, 2, 1), (64, 6, 2, 256), (256, 4, 2, 257)):
        rng = np.random.default_rng(9)
        q = _floats(rng, heads, d)
        k, v = _floats(rng, 2, 2, 256, kv_heads, d).astype(np.float16)
        n_splits = _ceil(length, 64)
        parts, mass = _empty(n_splits, heads, d), _empty(n_splits, heads, 2)
        blocks = [np.ascontiguousarray(x[min(i, 1)]) for x in (k, v) for i in range(8)]
        constants = {"D": d, "NH": heads, "NKV": kv_heads, "SCALE": 0.1}
        run(body, constants, [q, *blocks, parts, mass, length], (n_splits, kv_heads, 1), 256)
        w = np.exp(mass[..., 0] - mass[..., 0].max(0))
        got = (w[..., None] * parts).sum(0) / (w * mass[..., 1]).sum(0)[:, None]
        keys, values = (
            np.repeat(x.reshape(-1, kv_heads, d)[:length], heads // kv_heads, 1).astype(np.float64)
            for x in (k, v)
        )
        scores = np.einsum("hd,lhd->hl", q, keys) * 0.1
        p = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = np.einsum("hl,lhd->hd", p / p.sum(-1, keepdims=True), values)
        worst = max(worst, error(got, wanted))
    return worst


def attend_join(body: Body) -> float:
    rng, d, heads, splits = np.random.default_rng(10), 64, 3, 5
    parts, y = _floats(rng, splits, heads, d), _empty(heads, d)
    mass = np.abs(_floats(rng, splits, heads, 2))
    run(body, {"D": d, "NH": heads}, [parts, mass, y, splits], (heads, 1, 1), d)
    w = np.exp(mass[..., 0].astype(np.float64))
    return error(y, (w[..., None] * parts).sum(0) / (w * mass[..., 1]).sum(0)[:, None])


__all__ = [
    "attend_blocks",
    "attend_join",
    "delta_rows",
    "raw_down",
    "raw_gate_up",
    "raw_matvec",
]
