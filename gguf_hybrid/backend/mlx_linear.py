"""Weights of the MLX backend: each matrix in the layout its ggml type maps to exactly.

Quantised types become affine matrices with float32 scales (``gguf_hybrid.weights.repack`` lists
bits per weight), the others dense arrays. The source pages are given back once a tensor is built.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.quants import dequantize
from gguf_hybrid.weights.reader import TensorInfo
from gguf_hybrid.weights.repack import MINIMUM_RUN, AffineMatrix, layout_of, repack

DENSE_TYPES = {GGMLType.F32: np.float32, GGMLType.F16: np.float16}


class Linear:
    """y = x W^T for W [out, in], or a stack of experts [E, out, in]. x float32 [..., in]."""

    def __init__(self, terms: list["Dense | Affine"], minimums: "Dense | None" = None) -> None:
        self._terms = terms
        self._minimums = minimums
        parts = [*terms, *([minimums] if minimums else [])]
        self.nbytes = sum(part.nbytes for part in parts)

    def __call__(self, x: mx.array) -> mx.array:
        return self._combine(x, lambda part, x: part(x))

    def gather(self, x: mx.array, chosen: mx.array) -> mx.array:
        """Experts ``chosen`` [T, k] of each token: [T, k, out]. x is [T, in], or [T, k, in]."""
        x = x[:, None, None] if x.ndim == 2 else x[:, :, None]
        return self._combine(x, lambda part, x: part.gather(x, chosen))[..., 0, :]

    def rows(self, ids: mx.array) -> mx.array:
        """Rows of W as float32 [n, in]."""
        total = self._terms[0].rows(ids)
        for term in self._terms[1:]:
            total = total + term.rows(ids)
        if self._minimums is not None:
            total = total - mx.repeat(self._minimums.rows(ids), MINIMUM_RUN, axis=-1)
        return total

    def _combine(
        self, x: mx.array, product: Callable[["Dense | Affine", mx.array], mx.array]
    ) -> mx.array:
        total = product(self._terms[0], x)
        for term in self._terms[1:]:
            total = total + product(term, x)
        if self._minimums is not None:
            sums = x.reshape(*x.shape[:-1], -1, MINIMUM_RUN).sum(axis=-1)
            total = total - product(self._minimums, sums)
        return total


@dataclass(frozen=True, slots=True)
class Dense:
    """A plain matrix; 16-bit ones are widened where they are used."""

    weight: mx.array

    @property
    def nbytes(self) -> int:
        return int(self.weight.nbytes)

    def __call__(self, x: mx.array) -> mx.array:
        return x @ self.weight.swapaxes(-1, -2).astype(x.dtype)

    def gather(self, x: mx.array, chosen: mx.array) -> mx.array:
        weight = self.weight.swapaxes(-1, -2).astype(x.dtype)
        return mx.gather_mm(x, weight, rhs_indices=chosen)

    def rows(self, ids: mx.array) -> mx.array:
        return self.weight[ids].astype(mx.float32)


@dataclass(frozen=True, slots=True)
class Affine:
    """An MLX affine matrix."""

    codes: mx.array
    scales: mx.array
    biases: mx.array
    bits: int
    group_size: int

    @property
    def nbytes(self) -> int:
        return int(self.codes.nbytes + self.scales.nbytes + self.biases.nbytes)

    def __call__(self, x: mx.array) -> mx.array:
        return mx.quantized_matmul(
            x, self.codes, self.scales, self.biases, True, self.group_size, self.bits
        )

    def gather(self, x: mx.array, chosen: mx.array) -> mx.array:
        return mx.gather_qmm(
            x,
            self.codes,
            self.scales,
            self.biases,
            rhs_indices=chosen,
            transpose=True,
            group_size=self.group_size,
            bits=self.bits,
        )

    def rows(self, ids: mx.array) -> mx.array:
        return mx.dequantize(
            self.codes[ids], self.scales[ids], self.biases[ids], self.group_size, self.bits
        )


def linear_of(tensor: TensorInfo) -> Linear:
    """A weight in its exact layout, evaluated; the mapped pages of the tensor are released."""
    if layout_of(tensor.type).is_dense:
        linear = Linear([Dense(_dense(tensor))])
    else:
        weight = repack(tensor.data, tensor.type, tensor.shape)
        minimums = None if weight.minimums is None else Dense(mx.array(weight.minimums))
        linear = Linear([_affine(m) for m in weight.matrices], minimums)
    tensor.drop_pages()
    return linear


def vector_of(tensor: TensorInfo) -> mx.array:
    """A norm, bias or convolution as float32."""
    return mx.array(dequantize(tensor.data, tensor.type, tensor.shape))


def _affine(m: AffineMatrix) -> Affine:
    arrays = (mx.array(m.codes), mx.array(m.scales), mx.array(m.biases))
    mx.eval(arrays)
    return Affine(*arrays, m.bits, m.group_size)


def _dense(tensor: TensorInfo) -> mx.array:
    """F32, F16 and BF16 as stored; every other type decoded to float32."""
    if tensor.type is GGMLType.BF16:
        raw = mx.array(tensor.data.view(np.uint16).reshape(tensor.shape))
        dense = raw.view(mx.bfloat16)
    elif tensor.type in DENSE_TYPES:
        dense = mx.array(tensor.data.view(DENSE_TYPES[tensor.type]).reshape(tensor.shape))
    else:
        dense = mx.array(dequantize(tensor.data, tensor.type, tensor.shape))
    if mx.default_device() == mx.Device(mx.cpu):
        # Scalar CPU kernels would widen the whole matrix again in every step.
        dense = dense.astype(mx.float32)
    mx.eval(dense)
    return dense
