"""One case per kernel: run a body on random data and say how far it is from its reference.

A case takes the body, so that a test can hand it a mutated one. Sizes are small and uneven: rows
that fill no tile, matrices that fill no threadgroup, lengths around a block's end.
"""

import numpy as np
from gguf_hybrid.metal import kernel
from gguf_hybrid.metal.kernel import Body
from gguf_hybrid.metal.shim import run

from gguf_hybrid.weights.ggml import GGMLType

from .kernel_references import (
    EPS,
    FLOAT_TYPES,
    ROW_TILE,
    Chunk,
    delta_chunk,
    delta_chunks,
    delta_rule,
    empty_records,
    error,
    f16,
    first_operand,
    recorded,
    records,
    rms,
    second_operand,
    sigmoid,
    silu,
    weight,
)

T = GGMLType


def _rng() -> np.random.Generator:
    return np.random.default_rng(11)


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def _empty(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


def norm(body: Body) -> float:
    """Alone, and behind the outputs of two experts and a shared one."""
    rng, k = _rng(), 288
    x, w = _floats(rng, 3, k), _floats(rng, k)
    routed, weights = _floats(rng, 3, 3, k), _floats(rng, 3, 3)
    worst = 0.0
    for ranks in (0, 3):
        y, half, q = _empty(3, k), _empty(3, k, dtype=np.float16), empty_records(3, k)
        sums, joined = x.astype(np.float64), x.copy()
        if ranks:
            sums = x + (weights[..., None].astype(np.float64) * routed).sum(1)
        constants = {"K": k, "RECORDS": 1, "HALVES": 1, "LANES": 128, "EPS": EPS}
        constants |= {"RANKS": ranks, "K_USED": 2}
        run(body, constants, [joined, routed, weights, w, joined, y, q, half], (3, 1, 1), 128)
        wanted = rms(sums) * w
        codes = error(recorded(q, 3), records(y)[1])
        f16 = error(half.astype(np.float32), wanted) / 1e3
        worst = max(worst, error(y, wanted), error(joined, sums), codes, f16)
    return worst


def _matvec(body: Body, types: list[GGMLType], sizes: list[int], rows: int, k: int) -> float:
    rng = _rng()
    x = _floats(rng, rows, k)
    q, values = records(x)
    padded = _empty(ROW_TILE, k)
    padded[:rows] = x
    pairs = [weight(rng, t, n, k) for t, n in zip(types, sizes, strict=True)]
    outs = [_empty(rows, n) for n in sizes]
    residual = _floats(rng, rows, sizes[0])
    tiles, float_rows = (1, 2) if rows <= 8 else (4, 3)
    simds = 8 if rows <= 8 else 4
    constants = {"K": k, "NT": tiles, "FR": float_rows, "SIMDS": simds, "ADD": 1}
    constants |= {f"T{i}": int(t) for i, t in enumerate(types)}
    constants |= {f"N{i}": n for i, n in enumerate(sizes)}
    blocks = [
        -(-n // (float_rows if t in FLOAT_TYPES else 16)) for t, n in zip(types, sizes, strict=True)
    ]
    grid = (sum(blocks), -(-rows // (8 * tiles)), 1)
    run(
        body,
        constants,
        [q, padded, *(p for p, _ in pairs), residual, *outs, rows],
        grid,
        32 * simds,
    )
    worst = 0.0
    for i, (t, (_, w), y) in enumerate(zip(types, pairs, outs, strict=True)):
        wanted = (x.astype(np.float64) if t in FLOAT_TYPES else values) @ w.T
        worst = max(worst, error(y, wanted + residual if i == 0 else wanted))
    return worst


def matvec(body: Body) -> float:
    few = _matvec(body, [T.Q4_K, T.Q6_K, T.F32, T.Q8_0], [40, 16, 3, 4], 3, 512)
    more = _matvec(body, [T.Q5_K, T.Q4_0, T.BF16, T.F16], [17, 33, 2, 5], 17, 256)
    return max(few, more)


def embed(body: Body) -> float:
    rng, k = _rng(), 512
    tokens = np.array([3, 0, 6], np.int32)
    worst = 0.0
    for t in (T.Q4_K, T.Q5_K, T.Q6_K, T.Q4_0, T.Q8_0, T.F32, T.BF16):
        blocks, values = weight(rng, t, 7, k)
        y = _empty(3, k)
        run(body, {"K": k, "T0": int(t)}, [tokens, blocks, y], (3, 1, 1), 32)
        worst = max(worst, error(y, values[tokens]))
    return worst


GEOMETRY = {"D": 32, "HK": 2, "HV": 4, "KC": 4}
CONV = 8 * 32
LAYER = 3 * CONV + 4 * 32 * 32


def _delta_inputs(n: int) -> dict[str, np.ndarray]:
    rng = _rng()
    return {
        "qkv": _floats(rng, n, CONV),
        "z": _floats(rng, n, 4, 32),
        "alpha": _floats(rng, n, 4),
        "beta": _floats(rng, n, 4),
        "taps": _floats(rng, CONV, 4),
        "dt_bias": _floats(rng, 4),
        "a": -np.exp(_floats(rng, 4)),
        "norm": _floats(rng, 32),
        "pool": _floats(rng, 5, LAYER),
    }


def _mixed(i: dict[str, np.ndarray], past: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """q, k, v channels after convolution and normalisation [n, CONV], and the padded input."""
    history = np.concatenate([past, i["qkv"]]).astype(np.float64)
    n = len(i["qkv"])
    y = silu(sum(history[t : t + n] * i["taps"][:, t] for t in range(4)))
    heads = y.reshape(n, 8, 32).copy()
    heads[:, :4] /= np.sqrt((heads[:, :4] ** 2).sum(-1, keepdims=True) + EPS)
    return heads, history


def _gates(i: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Log decays and rates [n, heads]."""
    total = (i["alpha"] + i["dt_bias"]).astype(np.float64)
    return np.log1p(np.exp(total)) * i["a"], sigmoid(i["beta"])


def delta_step(body: Body) -> float:
    """Two rows, one of them starting from nothing; both head pairings."""
    worst = 0.0
    for tiled in (1, 0):
        i = _delta_inputs(2)
        reads, writes = np.array([1, -1], np.int32), np.array([3, 0], np.int32)
        before, pool = i["pool"].copy(), i["pool"].copy()
        y, q = _empty(2, 128), empty_records(2, 128)
        constants = GEOMETRY | {"TILED": tiled, "ROW_FLOATS": LAYER, "EPS": EPS}
        run(body, constants, [i["qkv"], i["z"], i["alpha"], i["beta"], i["taps"], i["dt_bias"],
            i["a"], i["norm"], reads, writes, pool, pool, y, q], (4, 2, 1), 256)  # fmt: skip
        log_decay, rate = _gates(i)
        decay = np.exp(log_decay)
        for b in range(2):
            state = before[reads[b]] if reads[b] >= 0 else np.zeros(LAYER, np.float32)
            row = i | {"qkv": i["qkv"][b : b + 1]}
            heads, history = _mixed(row, state[: 3 * CONV].reshape(3, CONV))
            worst = max(worst, error(pool[writes[b], : 3 * CONV], history[1:].ravel()))
            for h in range(4):
                kh = h % 2 if tiled else h // 2
                matrix = state[3 * CONV :].reshape(4, 32, 32)[h].astype(np.float64)
                o, states = delta_rule(heads[:, kh], heads[:, 2 + kh], heads[:, 4 + h],
                                       decay[b : b + 1, h], rate[b : b + 1, h], matrix)  # fmt: skip
                wanted = rms(o[0]) * i["norm"] * silu(i["z"][b, h])
                got = pool[writes[b], 3 * CONV :].reshape(4, 32, 32)[h]
                worst = max(worst, error(got, states[0]), error(y[b].reshape(4, 32)[h], wanted))
        worst = max(worst, error(recorded(q, 2), records(y)[1]), error(pool[1], before[1]))
    return worst


def convolve(body: Body) -> float:
    n, i = 5, _delta_inputs(5)
    reads, writes = np.array([2], np.int32), np.array([0, 4], np.int32)
    pool, mixed, gates = i["pool"].copy(), _empty(n, CONV), _empty(n, 4, 2)
    constants = GEOMETRY | {"ROW_FLOATS": LAYER, "EPS": EPS}
    run(body, constants, [i["qkv"], i["alpha"], i["beta"], i["taps"], i["dt_bias"], i["a"],
        reads, writes, pool, pool, mixed, gates, n, 2], (8, n, 1), 32)  # fmt: skip
    heads, history = _mixed(i, i["pool"][2, : 3 * CONV].reshape(3, CONV))
    log_decay, rate = _gates(i)
    return max(
        error(mixed, heads.reshape(n, CONV)),
        error(gates, np.stack([log_decay, rate], -1)),
        error(pool[0, : 3 * CONV], history[n : n + 3].ravel()),
        error(pool[4, : 3 * CONV], history[n - 1 : n + 2].ravel()),
    )


def delta_scan(body: Body) -> float:
    """More tokens than are staged at once, and the states after the last two of them."""
    rng, n = _rng(), 19
    i = _delta_inputs(n)
    heads, _ = _mixed(i, np.zeros((3, CONV)))
    mixed = heads.reshape(n, CONV).astype(np.float32)
    log_decay, rate = _gates(i)
    decay = np.exp(log_decay)
    gates = np.stack([log_decay, rate], -1).astype(np.float32)
    pool, o = _floats(rng, 5, LAYER), _empty(n, 4, 32)
    before = pool.copy()
    reads, writes = np.array([2], np.int32), np.array([0, 4], np.int32)
    constants = GEOMETRY | {"TILED": 1, "ROW_FLOATS": LAYER}
    run(body, constants, [mixed, gates, reads, writes, pool, pool, o, n, 2], (4, 2, 1), 128)
    worst = 0.0
    for h in range(4):
        matrix = before[2, 3 * CONV :].reshape(4, 32, 32)[h].astype(np.float64)
        wanted, states = delta_rule(heads[:, h % 2], heads[:, 2 + h % 2], heads[:, 4 + h],
                                    decay[:, h], rate[:, h], matrix)  # fmt: skip
        last, last_but_one = (pool[r, 3 * CONV :].reshape(4, 32, 32)[h] for r in (0, 4))
        worst = max(worst, error(o[:, h], wanted), error(last, states[-1]),
                    error(last_but_one, states[-2]))  # fmt: skip
    return worst


CHUNKED = [{"D": 32, "HK": 2, "HV": 4, "TILED": 1}, {"D": 64, "HK": 1, "HV": 2, "TILED": 0}]
"""Sizes of the chunk kernels, for two chunks of 64 tokens."""


def _chunk_inputs(sizes: dict[str, int]) -> tuple[np.ndarray, np.ndarray, list[list[Chunk]]]:
    """mixed, gates, and the two reference chunks of each head."""
    rng, d, k_heads, heads = _rng(), sizes["D"], sizes["HK"], sizes["HV"]
    mixed = _floats(rng, 128, 2 * k_heads + heads, d)
    mixed[:, : 2 * k_heads] /= np.linalg.norm(mixed[:, : 2 * k_heads], axis=-1, keepdims=True)
    gates = _floats(rng, 128, heads, 2)
    gates[..., 0] = -np.exp(gates[..., 0] - 3)
    gates[..., 1] = sigmoid(gates[..., 1])
    chunks = [
        [
            delta_chunk(*(x[at : at + 64] for x in _of_head(mixed, gates, sizes, h)))
            for at in (0, 64)
        ]
        for h in range(heads)
    ]
    return mixed, gates, chunks


def _of_head(
    mixed: np.ndarray, gates: np.ndarray, sizes: dict[str, int], h: int
) -> list[np.ndarray]:
    """q, k, v [n, d], log decays and rates [n] of a V head."""
    k_heads = sizes["HK"]
    kh = h % k_heads if sizes["TILED"] else h // (sizes["HV"] // k_heads)
    x, gates = mixed.astype(np.float64), gates.astype(np.float64)
    return [x[:, kh], x[:, k_heads + kh], x[:, 2 * k_heads + h], gates[:, h, 0], gates[:, h, 1]]


def _run_chunks(body: Body, sizes: dict[str, int], mixed: np.ndarray, gates: np.ndarray) -> tuple:
    d, heads = sizes["D"], sizes["HV"]
    parts = np.full((2, heads, 96 * d + 2048), 0x7E007E00, np.uint32)
    values, decays = _empty(2, heads, 64, d), _empty(2, heads)
    run(body, sizes, [mixed, gates, parts, values, decays], (2, heads, 1), 256)
    return parts, values, decays


def delta_chunk_parts(body: Body) -> float:
    worst = 0.0
    for sizes in CHUNKED:
        d = sizes["D"]
        mixed, gates, chunks = _chunk_inputs(sizes)
        parts, values, decays = _run_chunks(body, sizes, mixed, gates)
        for h, of_head in enumerate(chunks):
            for c, wanted in enumerate(of_head):
                w, q, k, scores = np.split(parts[c, h], [32 * d, 64 * d, 96 * d])
                halves = max(
                    error(first_operand(w, d), wanted.weights),
                    error(first_operand(q, d), wanted.queries),
                    error(second_operand(k, d), wanted.keys),
                    error(first_operand(scores, 64), wanted.scores),
                )
                floats = error(values[c, h], wanted.values), abs(decays[c, h] - wanted.decay)
                worst = max(worst, *floats, halves / 1e3)
    return worst


def delta_chunk_state(body: Body) -> float:
    """From a state, and from none. An operand rounded the other way is an error of 1e-4."""
    worst = 0.0
    for sizes, read in zip(CHUNKED, (2, -1), strict=True):
        d, heads = sizes["D"], sizes["HV"]
        mixed, gates, chunks = _chunk_inputs(sizes)
        arguments = _run_chunks(kernel.body("delta_chunk_parts"), sizes, mixed, gates)
        history = 3 * (2 * sizes["HK"] + heads) * d
        pool, o = _floats(_rng(), 4, history + heads * d * d), _empty(128, heads, d)
        before = pool[2, history:].reshape(heads, d, d).astype(np.float64) * (read >= 0)
        rows = np.array([read], np.int32), np.array([0], np.int32)
        constants = {n: sizes[n] for n in ("D", "HK", "HV")} | {
            "KC": 4,
            "ROW_FLOATS": pool.shape[1],
        }
        run(body, constants, [*arguments, *rows, pool, pool, o, 2], (heads, d // 32, 1), 128)
        after = pool[0, history:].reshape(heads, d, d)
        for h in range(heads):
            wanted, state = delta_chunks(chunks[h], before[h])
            q, k, v, log_decay, rate = _of_head(mixed, gates, sizes, h)
            exact, states = delta_rule(q, k, v, np.exp(log_decay), rate, before[h])
            worst = max(worst, error(o[:, h], wanted) / 20, error(after[h], state) / 20)
            worst = max(worst, error(o[:, h], exact) / 400, error(after[h], states[-1]) / 400)
    return worst


def gated_norm(body: Body) -> float:
    rng = _rng()
    o, z, w = _floats(rng, 5, 64), _floats(rng, 5, 64), _floats(rng, 64)
    y, half = _empty(5, 64), _empty(5, 64, dtype=np.float16)
    run(body, {"D": 64, "EPS": EPS}, [o, z, w, y, half], (5, 1, 1), 64)
    return max(error(y, rms(o) * w * silu(z)), error(half.astype(np.float32), y) / 1e3)


def rope_kv(body: Body) -> float:
    rng, d, heads, kv_heads, n, n_rot = _rng(), 64, 4, 2, 3, 16
    qg, k, v = _floats(rng, n, heads, 2 * d), _floats(rng, n, 2, d), _floats(rng, n, 2, d)
    wq, wk = _floats(rng, d), _floats(rng, d)
    angles = rng.uniform(0, 6, (n, n_rot // 2))
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    cells = np.array([255, 256, 2 * 256 + 7], np.int32)
    half_block = 256 * kv_heads * d
    q, kv = _empty(n, heads, d), np.zeros((3, 2, 256, kv_heads, d), np.float16)
    constants = {"D": d, "NH": heads, "NKV": kv_heads, "N_ROT": n_rot, "EPS": EPS}
    constants["BLOCK_STRIDE"] = 2 * half_block
    run(body, constants, [qg, k, v, wq, wk, cosines, sines, cells, q, kv], (6, n, 1), d)

    def rotated(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        x = rms(x) * w
        a, b, c, s = x[..., :8], x[..., 8:16], cosines[:, None], sines[:, None]
        return np.concatenate([a * c - b * s, a * s + b * c, x[..., 16:]], -1)

    stored = kv[cells // 256, :, cells % 256].astype(np.float32)
    f16 = max(error(stored[:, 0], rotated(k, wk)), error(stored[:, 1], v)) / 1e3
    return max(error(q, rotated(qg[..., :d], wq)), f16)


def _attended(q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
    scores = np.einsum("hd,lhd->hl", q, keys) * scale
    w = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hl,lhd->hd", w / w.sum(-1, keepdims=True), values)


def _attention(d: int, heads: int, kv_heads: int) -> tuple[list[np.ndarray], dict[str, float]]:
    """q, kv, lengths and tables of three rows: one key, a full block, one key more than a block."""
    rng = _rng()
    q = _floats(rng, 3, heads, d)
    kv = _floats(rng, 4, 2, 256, kv_heads, d).astype(np.float16)
    lengths = np.array([1, 256, 257], np.int32)
    tables = np.array([[3, 9], [0, 9], [2, 1]], np.int32)
    sizes = {"D": d, "NH": heads, "NKV": kv_heads, "S": 3, "C": 64 if d == 64 else 32}
    return [q, kv, lengths, tables], sizes | {"BLOCK_STRIDE": 512 * kv_heads * d, "SCALE": 0.1}


def attend_split(body: Body) -> float:
    worst = 0.0
    for d, heads, kv_heads in ((64, 4, 2), (256, 6, 2)):
        inputs, constants = _attention(d, heads, kv_heads)
        parts, mass = _empty(3, heads, 3, d), _empty(3, heads, 3, 2)
        run(body, constants, [*inputs, parts, mass, 2], (3, kv_heads, 3), 256)
        q, kv, lengths, tables = inputs
        top = mass[..., 0].max(-1, keepdims=True)
        w = np.exp(mass[..., 0] - top)
        joined = (w[..., None] * parts).sum(2) / (w * mass[..., 1]).sum(-1)[..., None]
        for b in range(3):
            used = tables[b][: -(-lengths[b] // 256)]
            cells = kv[used].astype(np.float64).transpose(1, 0, 2, 3, 4)
            keys, values = cells.reshape(2, -1, kv_heads, d)[:, : lengths[b]]
            spread = [np.repeat(x, heads // kv_heads, axis=1) for x in (keys, values)]
            worst = max(worst, error(joined[b], _attended(q[b], *spread, 0.1)))
    return worst


def attend_prompt(body: Body) -> float:
    """Rows whose queries see one key, and keys up to and across a block's end. Behind them NaN."""
    worst = 0.0
    for d, heads, kv_heads, n, start in ((64, 4, 2, 40, 0), (256, 6, 2, 5, 253)):
        rng, g, end = _rng(), heads // kv_heads, start + n
        q, qg = _floats(rng, n, heads, d), _floats(rng, n, heads, 2 * d)
        kv = _floats(rng, 3, 2, 256, kv_heads, d).astype(np.float16)
        table = np.array([2, 0], np.int32)
        cells = kv[table].transpose(1, 0, 2, 3, 4).reshape(2, -1, kv_heads, d)
        keys, values = (np.repeat(x.astype(np.float64), g, axis=1) for x in cells[:, :end])
        kv[table[end // 256], :, end % 256 :] = np.nan
        y, half = _empty(n, heads, d), _empty(n, heads, d, dtype=np.float16)
        room = np.zeros((-(-n * g // 64), kv_heads, 32 * d), np.uint32)
        constants = {"D": d, "NH": heads, "NKV": kv_heads, "SCALE": 0.125}
        constants["BLOCK_STRIDE"] = 512 * kv_heads * d
        lengths = np.arange(start + 1, end + 1, dtype=np.int32)
        arguments = [q, kv, lengths, table, qg, room, y, half, n * g]
        run(body, constants, arguments, (len(room), kv_heads, 1), 128)
        for b, length in enumerate(lengths):
            wanted = _attended(f16(q[b]), keys[:length], values[:length], 0.125)
            wanted *= sigmoid(qg[b, :, d:])
            worst = max(worst, error(y[b], wanted) / 200, error(half[b], wanted) / 1e3)
    return worst


def attend_merge(body: Body) -> float:
    rng, d, heads, splits = _rng(), 64, 6, 4
    parts, qg = _floats(rng, heads, splits, d), _floats(rng, heads, 2 * d)
    mass = np.abs(_floats(rng, heads, splits, 2))
    mass[1, 2] = (-3.0e38, 0.0)
    parts[1, 2] = 0.0
    y, q = _empty(heads, d), empty_records(2, 3 * d)
    constants = {"D": d, "NH": 3, "S": splits}
    run(body, constants, [parts, mass, qg, y, q], (heads, 1, 1), d)
    w = np.exp(mass[..., 0] - mass[..., 0].max(-1, keepdims=True))
    o = (w[..., None] * parts).sum(1) / (w * mass[..., 1]).sum(-1)[:, None]
    wanted = o * sigmoid(qg[:, d:])
    return max(error(y, wanted), error(recorded(q, 2), records(y.reshape(2, -1))[1]))


def top_experts(body: Body) -> float:
    """An uneven number of experts, and a tie that the lower index wins."""
    rng, n, e, k = _rng(), 4, 40, 3
    logits, shared = _floats(rng, n, e), _floats(rng, n)
    logits[0, 33] = logits[0, 2] = 5.0
    chosen, weights = np.full((n, k), -1, np.int32), _empty(n, k + 1)
    constants = {"E": e, "K_USED": k, "SHARED_GATE": 1, "W_SCALE": 1.5}
    run(body, constants, [logits, shared, chosen, weights], (n, 1, 1), 32)
    order, wanted = _routed(logits, shared, k)
    return max(error(weights, wanted), float((chosen != order).any()))


def _routed(logits: np.ndarray, shared: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    p = np.exp(logits - logits.max(-1, keepdims=True).astype(np.float64))
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    picked = np.take_along_axis(p, order, -1)
    routed = 1.5 * picked / picked.sum(-1, keepdims=True)
    return order, np.concatenate([routed, sigmoid(shared)[:, None]], -1)


RANKS = {"K_USED": 2, "RANKS": 3}
LIMITS = {"LANES": 256, "RESIDENT": 1}
CHOSEN = np.array([[2, 0], [1, 2], *[[2, 1]] * 7, [3, 2], [3, 2]], np.int32)
"""Expert 2 is everyone's, at either rank: more rows than a tile. Expert 0 has one row."""


def _groups(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows by expert as ``route`` leaves them, last expert first; unused places hold rubbish."""
    groups, members = np.full(9, 1 << 20, np.int32), np.full((4, 64), 1 << 20, np.int32)
    used = np.unique(chosen)[::-1]
    groups[0] = len(used)
    for i, e in enumerate(used):
        rows, ranks = np.nonzero(chosen == e)
        groups[1 + 2 * i : 3 + 2 * i] = e, len(rows)
        members[e, : len(rows)] = 3 * rows + ranks
    return groups, members


def route(body: Body) -> float:
    """More rows than simdgroups; every row's choice and weights, and every expert's rows once."""
    rng, n, e, k = _rng(), 5, 40, 3
    logits, shared = _floats(rng, n, e), _floats(rng, n)
    logits[:, 7] += 3.0
    weights, groups = _empty(n, k + 1), np.full(1 + 2 * e, -1, np.int32)
    members = np.full((e, 64), -1, np.int32)
    constants = {"E": e, "K_USED": k, "RANKS": 4, "SHARED_GATE": 1, "W_SCALE": 1.5}
    run(body, constants, [logits, shared, weights, groups, members, n], (1, 1, 1), 64)
    order, wanted = _routed(logits, shared, k)
    places = []
    for expert, count in groups[1 : 1 + 2 * groups[0]].reshape(-1, 2):
        places += [(expert, place) for place in members[expert, :count]]
    found = {(int(x), int(p)) for x, p in places}
    true = {(int(order[b, r]), 4 * b + r) for b in range(n) for r in range(k)}
    return max(error(weights, wanted), float(found != true or len(places) != n * k))


def gate_up(body: Body) -> float:
    few = _gate_up(body, T.Q4_K, T.Q6_K, CHOSEN[:2], 1)
    many = _gate_up(body, T.Q5_K, T.Q8_0, CHOSEN, 2)
    return max(few, many, _gate_up(body, T.F32, T.Q4_K, CHOSEN[:2], 1))


def _gate_up(body: Body, routed: T, common: T, chosen: np.ndarray, tiles: int) -> float:
    """Experts of width 256, a shared one of width 512."""
    rng, n, k, f, fs = _rng(), len(chosen), 512, 256, 512
    x = _floats(rng, n, k)
    q, values = records(x)
    stacks = [weight(rng, routed, 4 * f, k) for _ in range(2)]
    shared = [weight(rng, common, fs, k) for _ in range(2)]
    y, hq = _empty(n, 3, fs), empty_records(n * 3, fs)
    sizes = {"K": k, "F": f, "FS": fs, "FMAX": fs, "TE": int(routed), "TS": int(common)}
    constants = RANKS | LIMITS | sizes | {"EXPERT_ROWS": f, "NT": tiles, "KS": 2}
    weights = [p for p, _ in (*stacks, *shared)]
    arguments = [q, x, *_groups(chosen), *weights, y, hq, n]
    run(body, constants, arguments, (5, fs // 32, 1), 256)
    worst = 0.0
    for b in range(n):
        for rank in range(3):
            pairs, rows = (shared, slice(None)) if rank == 2 else (stacks, slice(None))
            if rank < 2:
                rows = slice(chosen[b, rank] * f, (chosen[b, rank] + 1) * f)
            is_float = rank < 2 and routed in FLOAT_TYPES
            gate, up = ((x if is_float else values)[b] @ w[rows].T for _, w in pairs)
            worst = max(worst, error(y[b, rank, : gate.size], silu(gate) * up))
    y[:, :2, f:] = 0.0
    codes = recorded(hq, 3 * n).reshape(n, 3, fs)
    codes[:, :2, f:] = 0.0
    return max(worst, error(codes, records(y.reshape(-1, fs))[1].reshape(n, 3, fs)))


def down(body: Body) -> float:
    few = _down(body, T.Q6_K, T.Q5_K, CHOSEN[:2], 1)
    many = _down(body, T.Q4_K, T.Q4_0, CHOSEN, 2)
    return max(few, many, _down(body, T.Q4_K, T.BF16, CHOSEN[:2], 1))


def _down(body: Body, routed: T, common: T, chosen: np.ndarray, tiles: int) -> float:
    rng, n, out, f, fs = _rng(), len(chosen), 112, 256, 512
    h = _floats(rng, n * 3, fs)
    q, values = records(h)
    stack, w = weight(rng, routed, 4 * out, f)
    shared, ws = weight(rng, common, out, fs)
    y = _empty(n, 3, out)
    sizes = {"N": out, "F": f, "FS": fs, "FMAX": fs, "TE": int(routed), "TS": int(common)}
    constants = RANKS | LIMITS | sizes | {"NT": tiles, "KS": 2}
    arguments = [q, h, *_groups(chosen), stack, shared, y, n]
    run(body, constants, arguments, (5, -(-out // 64), 1), 256)
    if common in FLOAT_TYPES:
        values.reshape(n, 3, fs)[:, 2] = h.reshape(n, 3, fs)[:, 2]
    values = values.reshape(n, 3, fs)
    wanted = np.empty((n, 3, out))
    for b in range(n):
        for rank in range(2):
            rows = w[chosen[b, rank] * out : (chosen[b, rank] + 1) * out]
            wanted[b, rank] = rows @ values[b, rank, :f]
        wanted[b, 2] = ws @ values[b, 2]
    return error(y, wanted)


def matmul(body: Body) -> float:
    """A ragged dense product of each type, and one grouped by expert. Operands are f16."""
    rng, k, n, rows = _rng(), 256, 70, 67
    x = _floats(rng, rows, k).astype(np.float16)
    none = np.zeros(1, np.int32)
    worst = 0.0
    for t in (T.Q4_K, T.Q6_K, T.Q8_0):
        blocks, w = weight(rng, t, n, k)
        residual, y = _floats(rng, rows, n), _empty(rows, n)
        constants = {"K": k, "N": n, "T0": int(t), "BM": 64, "GROUPED": 0, "SOURCE_DIV": 1}
        constants |= {"EXPERT_ROWS": n, "ADD": 1}
        run(body, constants, [x, blocks, none, none, residual, y, rows], (2, 2, 1), 256)
        exact = x.astype(np.float64) @ w.astype(np.float16).astype(np.float64).T + residual
        worst = max(worst, error(y, exact))
    return max(worst, _grouped(body, rng, x, k, n))


def _grouped(body: Body, rng: np.random.Generator, x: np.ndarray, k: int, n: int) -> float:
    stack, w = weight(rng, T.Q4_K, 2 * n, k)
    order = np.array([0, 3, 5, 1, 2, 4], np.int32)
    tiles = np.array([2, 1, 0, 3, 0, 3, 3], np.int32)
    y = _empty(6, n)
    constants = {"K": k, "N": n, "T0": int(T.Q4_K), "BM": 64, "GROUPED": 1, "SOURCE_DIV": 2}
    constants |= {"EXPERT_ROWS": n, "ADD": 0}
    run(body, constants, [x, stack, tiles, order, y, y, 6], (2, 4, 1), 256)
    experts = np.empty(6, int)
    experts[order[:3]], experts[order[3:]] = 1, 0
    half = w.astype(np.float16).astype(np.float64).reshape(2, n, k)
    wanted = np.stack([half[experts[p]] @ x[p // 2].astype(np.float64) for p in range(6)])
    return error(y, wanted)


def expert_tiles(body: Body) -> float:
    """0 if every pair stands exactly once, in a tile of its own expert."""
    rng, n_pairs, e, tile = _rng(), 150, 5, 16
    chosen = rng.integers(0, e - 1, n_pairs).astype(np.int32)
    order, cursor = np.full(n_pairs, -1, np.int32), np.zeros(e, np.int32)
    tiles = np.full(1 + 3 * (e + n_pairs // tile), -1, np.int32)
    arguments = [chosen, order, tiles, cursor, n_pairs]
    run(body, {"E": e, "BM": tile}, arguments, (1, 1, 1), 64)
    seen: list[int] = []
    for expert, first, count in tiles[1 : 1 + 3 * tiles[0]].reshape(-1, 3):
        members = order[first : first + count]
        if not 0 < count <= tile or (chosen[members] != expert).any():
            return 1.0
        seen += members.tolist()
    return float(sorted(seen) != list(range(n_pairs)))


def swiglu(body: Body) -> float:
    rng, n = _rng(), 70
    gate, up, h = _floats(rng, n), _floats(rng, n), _empty(n)
    half = _empty(n, dtype=np.float16)
    run(body, {}, [gate, up, h, half, n], (3, 1, 1), 32)
    return max(error(h, silu(gate) * up), error(half, h) / 1e3)


def combine(body: Body) -> float:
    rng, n, out = _rng(), 2, 40
    routed, shared = _floats(rng, n, 3, out), _floats(rng, n, out)
    weights, residual, y = _floats(rng, n, 4), _floats(rng, n, out), _empty(n, out)
    constants = {"N": out, "K_USED": 3, "SHARED": 1}
    run(body, constants, [routed, shared, weights, residual, y], (n, 1, 1), 32)
    total = (weights[:, :3, None] * routed).sum(1) + weights[:, 3:] * shared
    return error(y, residual + total)


def repack(body: Body) -> float:
    """0 if Q8_0 blocks come out as their scales, then their codes."""
    rng, n = _rng(), 3
    raw = rng.integers(0, 256, (n, 8, 34), dtype=np.uint8)
    out = np.zeros((n, 272), np.uint8)
    run(body, {"T0": int(T.Q8_0)}, [raw, out, n], (2, 1, 1), 64)
    wanted = np.concatenate([raw[..., :2].reshape(n, -1), raw[..., 2:].reshape(n, -1)], axis=1)
    return float((out != wanted).any())


def take_tokens(body: Body) -> float:
    """0 if exactly the rows with a source get its pick."""
    source, picks = np.array([1, -1, 0, 2], np.int32), np.array([7, 9, -1], np.int32)
    tokens = np.array([3, 4, 5, 6], np.int32)
    run(body, {}, [source, picks, tokens, 4], (1, 1, 1), 32)
    return float(tokens.tolist() != [9, 4, 7, 0])


SAMPLING = {"SLICES": 3, "K_MAX": 8, "BIASES": 2, "WINDOW": 6}


def sample_slices(body: Body) -> float:
    """Two rows: biases, a window that says tokens twice, ties, NaN; a row without any of it."""
    v, k = 200, 5
    logits = np.round(_floats(_rng(), 2, v) * 2)
    logits[0, 130] = np.nan
    counts, knobs = np.zeros((2, 3 + 2 + 6), np.int32), np.zeros((2, 7 + 2), np.float32)
    knobs[:, 0] = 1
    counts[:, 0] = k
    counts[0, 1:5] = (2, 5, 20, 150)
    counts[0, 5:9] = (40, 60, 40, 199)
    knobs[0] = (1.25, 0.5, 0.25, 0, 0, 0, 0, 9.0, -np.inf)
    tokens = np.array([60, 1], np.int32)
    values, ids = _empty(2, 8, 3), np.full((2, 8, 3), -7, np.int32)
    constants = {"V": v, "LANES": 64} | SAMPLING
    run(body, constants, [logits, tokens, counts, knobs, values, ids], (3, 2, 1), 64)
    moved = np.where(np.isnan(logits), np.inf, logits).astype(np.float64)
    moved[0, [20, 150]] += (9.0, -np.inf)
    for token, n in ((40, 2), (60, 2), (199, 1)):
        said = moved[0, token]
        moved[0, token] = (said * 1.25 if said <= 0 else said / 1.25) - (n * 0.5 + 0.25)
    wrong = 0.0
    for row in range(2):
        for i, part in enumerate(np.split(np.arange(v), [67, 134])):
            best = part[np.argsort(-moved[row, part], kind="stable")[:k]]
            wrong += (ids[row, :k, i] != best).sum() + (
                values[row, :k, i] != moved[row, best]
            ).sum()
    return float(wrong)


def sample_merge(body: Body) -> float:
    """0 if each number picks what the definition picks. The logits of the last row are infinite."""
    rng, k, n = _rng(), 7, 40
    values = -np.sort(-_floats(rng, n, 8, 3) * 2, axis=1)
    values[-1, 0, 1] = np.inf
    ids = rng.permuted(np.tile(np.arange(24, dtype=np.int32), (n, 1)), axis=1).reshape(n, 8, 3)
    counts, knobs = np.zeros((n, 3 + 2 + 6), np.int32), np.zeros((n, 7 + 2), np.float32)
    counts[:, 0] = k
    knobs[:, 3] = rng.choice([0.0, 0.5, 0.9, 1.0], n)
    knobs[:, 4] = np.log(rng.choice([0.01, 0.1, 1e-30], n))
    knobs[:, 5] = rng.choice([0.3, 1.0, 2.0], n)
    knobs[:, 6] = rng.uniform(size=n)
    picks = np.full(n, -7, np.int32)
    arguments = [values, ids, counts, knobs, picks]
    run(body, SAMPLING, arguments, (n, 1, 1), 32)
    wanted = [_picked(*each, k) for each in zip(values, ids, knobs, strict=True)]
    return float((picks != wanted).sum())


def _picked(values: np.ndarray, ids: np.ndarray, knobs: np.ndarray, k: int) -> int:
    best = np.argsort(-values.ravel(), kind="stable")[:k]
    logits = values.ravel()[best].astype(np.float64)
    if not np.isfinite(logits[0]):
        return -1
    weights = np.exp(logits - logits[0])
    within = np.cumsum(weights) - weights < knobs[3] * weights.sum()
    within[0] = True
    logits = logits[within & (logits >= logits[0] + knobs[4])]
    sums = np.cumsum(np.exp((logits - logits[0]) / knobs[5]))
    return int(ids.ravel()[best[np.searchsorted(sums, knobs[6] * sums[-1], side="right")]])
