"""The switchable operations of the MLX backend as own Metal kernels (``gguf_hybrid.metal.apple``).

Same signatures as ``mlx_stock``. Arithmetic: float32 activations, codes and scales decoded to
float32, float32 sums; no rounding of activations as on CUDA, because Apple GPUs have no int8 dot
product. In each kernel what a lane adds for one row is the same whatever the number of rows;
products of more than ``MAX_ROWS`` rows are decoded weights in a stock matmul instead. Not run on
Metal.

Sizes follow published Metal kernels for the same work: two simdgroups a threadgroup with two weight
rows each for K-quants (llama.cpp b11434, ggml-metal-impl.h, N_SG and N_R0), four for plain blocks
(MLX quantized.h, results_per_simdgroup).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.metal.apple import Kernels
from gguf_hybrid.step import BLOCK
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.reader import TensorInfo

from .mlx_linear import Linear
from .mlx_stock import DeltaRows, DeltaWeights

SUPERBLOCK = 256
SUPERBLOCK_NBYTES = {
    GGMLType.Q4_0: 144,
    GGMLType.Q8_0: 272,
    GGMLType.Q4_K: 144,
    GGMLType.Q5_K: 176,
    GGMLType.Q6_K: 224,
}
"""Bytes of 256 weights as the kernels read them (``metal/blocks.h``)."""
MAX_ROWS = 64
SLAB_WEIGHTS = 1 << 26
"""Weights decoded at a time for products of many rows: 256 MiB of float32."""
SIMDS = 2
WEIGHT_ROWS = {GGMLType.Q4_0: 4, GGMLType.Q8_0: 4}
K_QUANT_ROWS = 2
LAUNCH_BLOCKS = 8
SPLIT = 64
"""Keys of a threadgroup of ``attend_blocks``."""


@dataclass(frozen=True, slots=True)
class RawBlocks:
    """A matrix [n, k] or a stack [E, n, k] as its blocks: bytes uint8 [E * n, row bytes]."""

    blocks: mx.array
    type: GGMLType
    n: int
    k: int

    @property
    def nbytes(self) -> int:
        return int(self.blocks.nbytes)

    @property
    def per_simd(self) -> int:
        """Weight rows that a simdgroup takes."""
        return WEIGHT_ROWS.get(self.type, K_QUANT_ROWS)


def is_covered(tensor: TensorInfo) -> bool:
    """Whether the kernels read this matrix or stack of matrices as blocks."""
    return (
        tensor.type in SUPERBLOCK_NBYTES
        and len(tensor.shape) > 1
        and tensor.shape[-1] % SUPERBLOCK == 0
    )


def raw_of(tensor: TensorInfo) -> RawBlocks:
    """The blocks of a covered tensor, regrouped to multiples of 16 bytes where they are not."""
    *_, n, k = tensor.shape
    packed = _regrouped(tensor.data, tensor.type)
    row_nbytes = k // SUPERBLOCK * SUPERBLOCK_NBYTES[tensor.type]
    blocks = mx.array(packed.reshape(-1, row_nbytes))
    mx.eval(blocks)
    tensor.drop_pages()
    return RawBlocks(blocks, tensor.type, n, k)


def _regrouped(data: npt.NDArray[np.uint8], ggml_type: GGMLType) -> npt.NDArray[np.uint8]:
    if ggml_type is GGMLType.Q6_K:
        blocks = data.reshape(-1, 210)
        return np.pad(blocks, ((0, 0), (0, SUPERBLOCK_NBYTES[ggml_type] - 210)))
    if ggml_type in {GGMLType.Q4_0, GGMLType.Q8_0}:
        eight = data.reshape(-1, 8, SUPERBLOCK_NBYTES[ggml_type] // 8)
        scales, codes = eight[:, :, :2], eight[:, :, 2:]
        return np.concatenate([scales.reshape(len(eight), -1), codes.reshape(len(eight), -1)], 1)
    return data


class RawLinear(Linear):
    """``Linear`` over blocks, for one matrix: the operation ``matvec``."""

    def __init__(self, kernels: Kernels, raw: RawBlocks) -> None:
        super().__init__([])
        self.nbytes = raw.nbytes
        self._kernels, self._raw = kernels, raw

    def __call__(self, x: mx.array) -> mx.array:
        """x float32 [..., k]: [..., n]."""
        raw = self._raw
        flat = x.reshape(-1, raw.k)
        y = self._few(flat) if len(flat) <= MAX_ROWS else self._many(flat)
        return y.reshape(*x.shape[:-1], raw.n)

    def rows(self, ids: mx.array) -> mx.array:
        """Rows of W as float32 [len(ids), k]."""
        raw = self._raw
        decode = self._kernels("embed", K=raw.k, T0=int(raw.type))
        inputs = [ids.astype(mx.int32), raw.blocks]
        return decode(inputs, [(ids.size, raw.k)], (ids.size, 1, 1), 32)[0]

    def _few(self, x: mx.array) -> mx.array:
        raw, n_rows = self._raw, len(x)
        tile = next(t for t in (1, 2, 4, 8) if t >= min(n_rows, 8))
        kernel = self._kernels(
            "raw_matvec", K=raw.k, N=raw.n, T0=int(raw.type), R=raw.per_simd, NB=tile
        )
        grid = (-(-raw.n // (SIMDS * raw.per_simd)), -(-n_rows // tile), 1)
        return kernel([x, raw.blocks, n_rows], [(n_rows, raw.n)], grid, 32 * SIMDS)[0]

    def _many(self, x: mx.array) -> mx.array:
        step = max(1, SLAB_WEIGHTS // self._raw.k)
        slabs = [
            x @ self.rows(mx.arange(first, min(first + step, self._raw.n))).T
            for first in range(0, self._raw.n, step)
        ]
        return slabs[0] if len(slabs) == 1 else mx.concatenate(slabs, axis=-1)


class OwnOperations:
    """As Metal kernels."""

    def __init__(self, config: ModelConfig, kernels: Kernels) -> None:
        self.config = config
        self._kernels = kernels

    def top_experts(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """As ``StockOperations.top_experts``."""
        c, n = self.config, len(logits)
        kernel = self._kernels(
            "top_experts",
            absent=("shared",),
            E=c.n_expert,
            K_USED=c.n_expert_used,
            SHARED_GATE=0,
            W_SCALE=c.expert_weights_scale or 1.0,
        )
        shapes = [(n, c.n_expert_used), (n, c.n_expert_used + 1)]
        chosen, weights = kernel([logits], shapes, (n, 1, 1), 32)
        return chosen, weights[:, : c.n_expert_used]

    def gate_up(
        self, y: mx.array, chosen: mx.array, gate: RawBlocks, up: RawBlocks | None
    ) -> mx.array:
        """As ``StockOperations.gate_up``, over blocks."""
        n, k = chosen.shape
        width = gate.n if up else gate.n // 2
        second = up or gate
        kernel = self._kernels(
            "raw_gate_up", K=gate.k, F=width, K_USED=k, T0=int(gate.type), T1=int(second.type),
            ROWS=gate.n, UP_AT=0 if up else width, R=K_QUANT_ROWS,
        )  # fmt: skip
        order = mx.argsort(chosen.reshape(-1)).astype(mx.int32)
        inputs = [y, chosen, order, gate.blocks, second.blocks]
        grid = (n * k, -(-width // (SIMDS * K_QUANT_ROWS)), 1)
        return kernel(inputs, [(n, k, width)], grid, 32 * SIMDS)[0]

    def down(self, h: mx.array, chosen: mx.array, weights: mx.array, down: RawBlocks) -> mx.array:
        """As ``StockOperations.down``, over blocks."""
        n, k = chosen.shape
        kernel = self._kernels(
            "raw_down", F=down.k, N=down.n, K_USED=k, T0=int(down.type), R=K_QUANT_ROWS
        )
        grid = (n, -(-down.n // (SIMDS * K_QUANT_ROWS)), 1)
        inputs = [h, chosen, weights, down.blocks]
        return kernel(inputs, [(n, down.n)], grid, 32 * SIMDS)[0]

    def delta_step(
        self, qkv: mx.array, alpha: mx.array, beta: mx.array, w: DeltaWeights, conv: mx.array,
        delta: mx.array,
    ) -> DeltaRows:  # fmt: skip
        """As ``StockOperations.delta_step``."""
        c, n = self.config, len(qkv)
        kernel = self._kernels(
            "delta_rows",
            D=c.ssm_state_size,
            HK=c.ssm_group_count,
            HV=c.ssm_time_step_rank,
            KC=c.ssm_conv_kernel,
            TILED=c.tiled_v_heads,
            EPS=c.rms_eps,
        )
        o_shape = (n, c.ssm_time_step_rank, c.ssm_state_size)
        new_conv, new_delta, o = kernel(
            [qkv, alpha, beta, w.taps, w.dt_bias, w.a, conv, delta],
            [conv.shape, delta.shape, o_shape],
            (c.ssm_time_step_rank, c.ssm_state_size // 32, n),
            256,
        )
        return DeltaRows(o, new_conv, new_delta)

    def attend(
        self, q: mx.array, keys: Sequence[mx.array], values: Sequence[mx.array], length: int
    ) -> mx.array:
        """As ``StockOperations.attend``; f16 blocks are read where they are."""
        c = self.config
        heads, d = q.shape
        split = self._kernels(
            "attend_blocks", D=d, NH=heads, NKV=c.n_head_kv, SCALE=c.attention_scale
        )
        parts, masses = [], []
        for first in range(0, -(-length // BLOCK), LAUNCH_BLOCKS):
            here = min(length - first * BLOCK, LAUNCH_BLOCKS * BLOCK)
            n_blocks, n_splits = -(-here // BLOCK), -(-here // SPLIT)
            some = [_eight(b[first : first + n_blocks]) for b in (keys, values)]
            shapes = [(n_splits, heads, d), (n_splits, heads, 2)]
            o, mass = split([q, *some[0], *some[1], here], shapes, (n_splits, c.n_head_kv, 1), 256)
            parts.append(o)
            masses.append(mass)
        o, mass = (a[0] if len(a) == 1 else mx.concatenate(a) for a in (parts, masses))
        join = self._kernels("attend_join", D=d, NH=heads)
        return join([o, mass, len(o)], [(heads, d)], (heads, 1, 1), d)[0]


def attends(config: ModelConfig, kv_type: str) -> bool:
    """Whether ``OwnOperations.attend`` covers these heads and this cache."""
    return kv_type == "f16" and config.head_dim in {32, 64, 128, 256}


def steps(config: ModelConfig) -> bool:
    """Whether ``OwnOperations.delta_step`` covers this state."""
    return config.ssm_state_size in {32, 64, 128}


def _eight(blocks: Sequence[mx.array]) -> list[mx.array]:
    """Eight arguments; the surplus ones are never read."""
    return [*blocks, *[blocks[0]] * (LAUNCH_BLOCKS - len(blocks))]
