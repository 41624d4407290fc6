"""Weights of the MLX backend: a matrix in the layout its ggml type maps to exactly.

TEMPORARY dense form until weights.repack lands.
"""

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from gguf_hybrid.weights.reader import TensorInfo


def dense(tensor: TensorInfo) -> mx.array:
    data = tensor.data.reshape(*tensor.shape[:-1], -1)
    return mx.array(dequantize(data, GGMLQuantizationType(int(tensor.type))).astype(np.float32).reshape(tensor.shape))


class Linear:
    def __init__(self, w):
        self.w = w
        self.nbytes = w.nbytes

    def __call__(self, x):
        return x @ self.w.T

    def rows(self, ids):
        return self.w[ids]

    def gather(self, x, chosen):
        """x [T, in] or [T, k, in]; chosen [T, k] -> [T, k, out]"""
        x = x[:, None, None] if x.ndim == 2 else x[:, :, None]
        return mx.gather_mm(x, self.w.swapaxes(-1, -2), rhs_indices=chosen)[..., 0, :]


def linear_of(t):
    return Linear(dense(t))


def vector_of(t):
    return dense(t)
