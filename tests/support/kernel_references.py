"""NumPy statements of the kernels in float64, and data in the kernels' layouts."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from gguf_hybrid.metal import kernel, shim

from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.quants import dequantize

from .blocks import random_blocks

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

EPS = 1e-6
REPACKED = {GGMLType.Q4_0: 144, GGMLType.Q8_0: 272, GGMLType.Q6_K: 224}
ROW_TILE = 32
"""Activation rows in a buffer of the kernels: whole tiles."""
FLOAT_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def weight(rng: np.random.Generator, ggml_type: GGMLType, n: int, k: int) -> tuple[Bytes, Doubles]:
    """A random matrix as the kernels read it, and its values [n, k]."""
    if ggml_type is GGMLType.F32:
        values = rng.normal(size=(n, k)).astype(np.float32)
        return values.view(np.uint8).ravel(), values.astype(np.float64)
    raw = random_blocks(ggml_type, n, k, rng).ravel()
    values = dequantize(raw, ggml_type, (n, k)).astype(np.float64)
    return packed(raw, ggml_type, n * k // 256), values


def packed(raw: Bytes, ggml_type: GGMLType, n: int) -> Bytes:
    """The bytes of ``n`` superblocks in the layout of ``blocks.h``."""
    if ggml_type not in REPACKED:
        return raw
    out = np.zeros(n * REPACKED[ggml_type], np.uint8)
    body = kernel.body("repack")
    shim.run(body, {"T0": int(ggml_type)}, [raw, out, n], (-(-n // 2), 1, 1), 64)
    return out


def empty_records(rows: int, k: int) -> npt.NDArray[np.uint32]:
    """Activation records of NaN for ``rows`` in whole tiles: [tiles, k / 32, 80]."""
    return np.full((-(-rows // ROW_TILE) * ROW_TILE // 8, k // 32, 80), 0x7FC00000, np.uint32)


def records(x: Floats) -> tuple[npt.NDArray[np.uint32], Doubles]:
    """Activation records of x [rows, k], and the values they stand for."""
    rows, k = x.shape
    groups = x.reshape(rows, k // 32, 32)
    d = np.abs(groups).max(-1).astype(np.float32) / np.float32(127)
    codes = np.rint(groups / np.where(d > 0, d, 1)[..., None]).astype(np.int8)
    packed = empty_records(rows, k)
    words, sums = codes.view(np.uint32), d * codes.sum(-1, dtype=np.int32)
    for row in range(rows):
        tile, slot = packed[row // 8], row % 8
        tile[:, 8 * slot : 8 * slot + 8] = words[row]
        tile[:, 64 + 2 * slot] = d[row].view(np.uint32)
        tile[:, 65 + 2 * slot] = sums[row].astype(np.float32).view(np.uint32)
    values = codes * d[..., None].astype(np.float64)
    return packed, values.reshape(rows, k)


def recorded(packed: npt.NDArray[np.uint32], rows: int) -> Doubles:
    """The values of activation records: [rows, k]. NaN where the sum is not that of the codes."""
    tiles, groups, _ = packed.shape
    words = packed[..., :64].reshape(tiles, groups, 8, 8).transpose(0, 2, 1, 3)
    codes = np.ascontiguousarray(words).reshape(8 * tiles, groups, 8).view(np.int8)
    factors = packed[..., 64:].view(np.float32).reshape(tiles, groups, 8, 2).transpose(0, 2, 1, 3)
    d, sums = factors.reshape(8 * tiles, groups, 2)[:rows].astype(np.float64).transpose(2, 0, 1)
    codes = codes[:rows]
    values = codes * d[..., None]
    wrong = np.abs(values.sum(-1) - sums) > 1e-5 * np.abs(values).sum(-1)
    values[wrong] = np.nan
    return values.reshape(rows, -1)


def rms(x: npt.NDArray[np.floating]) -> Doubles:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def silu(x: npt.NDArray[np.floating]) -> Doubles:
    return x * sigmoid(x)


def sigmoid(x: npt.NDArray[np.floating]) -> Doubles:
    return 0.5 + 0.5 * np.tanh(0.5 * x.astype(np.float64))


def error(got: npt.NDArray[np.floating], wanted: npt.NDArray[np.floating]) -> float:
    """Largest difference over the largest value; infinite where ``got`` has a NaN."""
    if np.isnan(got).any():
        return float("inf")
    return float(np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-30))


def delta_rule(
    q: Doubles, k: Doubles, v: Doubles, decay: Doubles, rate: Doubles, state: Doubles
) -> tuple[Doubles, list[Doubles]]:
    """One V head over n tokens. q, k, v [n, d], state [d, d]: o [n, d], and every state."""
    outputs, states = [], []
    for t in range(len(q)):
        state = state * decay[t]
        state = state + np.outer(rate[t] * (v[t] - state @ k[t]), k[t])
        outputs.append(state @ q[t] / np.sqrt(q.shape[1]))
        states.append(state)
    return np.array(outputs), states


def f16(x: Doubles) -> Doubles:
    """The values after rounding to f16."""
    return x.astype(np.float16).astype(np.float64)


class Chunk(NamedTuple):
    """What a chunk needs beside the state; all f16 but ``values`` and ``decay``."""

    weights: Doubles
    queries: Doubles
    keys: Doubles
    scores: Doubles
    values: Doubles
    decay: float


def delta_chunk(q: Doubles, k: Doubles, v: Doubles, log_decay: Doubles, rate: Doubles) -> Chunk:
    """One chunk of one V head in its WY form (arXiv 2412.06464, section 3.3). q, k, v [c, d]."""
    total = np.cumsum(log_decay)
    gap = np.exp(np.tril(total[:, None] - total))
    a = np.tril(f16(k) @ f16(k).T * gap * rate[:, None], -1)
    right = np.concatenate([v * rate[:, None], -k * (rate * np.exp(total))[:, None]], axis=1)
    values, weights = np.split(np.linalg.solve(np.eye(len(a)) + a, right), 2, axis=1)
    scale = 1 / np.sqrt(q.shape[1])
    return Chunk(
        weights=f16(weights),
        queries=f16(q * np.exp(total)[:, None] * scale),
        keys=f16(k * np.exp(total[-1] - total)[:, None]),
        scores=f16(np.tril(f16(q) @ f16(k).T * gap) * scale),
        values=values,
        decay=float(np.exp(total[-1])),
    )


def delta_chunks(chunks: list[Chunk], state: Doubles) -> tuple[Doubles, Doubles]:
    """The state [d, d] through chunks: o [n, d] and the state after them."""
    outputs = []
    for chunk in chunks:
        rounded = f16(state).T
        new = f16(chunk.values + chunk.weights @ rounded)
        outputs.append(chunk.queries @ rounded + chunk.scores @ new)
        state = chunk.decay * state + new.T @ chunk.keys
    return np.concatenate(outputs), state


def first_operand(words: npt.NDArray[np.uint32], columns: int) -> Doubles:
    """The matrix [64, columns] that lanes hold as first operands of ``simd_mma`` (``cuda.h``)."""
    halves = words.view(np.float16).reshape(4, columns // 16, 8, 4, 2, 2, 2)
    # tile, k16, g, t, half of columns, half of rows, pair -> rows (tile, half, g), columns
    return halves.transpose(0, 5, 2, 1, 4, 3, 6).reshape(64, columns).astype(np.float64)


def second_operand(words: npt.NDArray[np.uint32], columns: int) -> Doubles:
    """The matrix [64, columns] of second operands, two steps of 16 rows side by side."""
    halves = words.view(np.float16).reshape(columns // 8, 2, 8, 4, 2, 2, 2)
    # tile, 32 rows, g, t, k16, half of rows, pair -> rows (32, k16, half, t, pair), columns
    return halves.transpose(1, 4, 5, 3, 6, 0, 2).reshape(64, columns).astype(np.float64)
