"""Weights that a backend has no kernel for, decoded to float32 when the model is loaded.

The code-book types (IQ1, IQ2, IQ3), the ternary ones and NVFP4 take this way, at 32 bits a weight;
so do vectors that a file stores in anything but F32. NVFP4's ``.scale`` sidecars multiply a
product, which is the same as multiplying the weights, and are folded in here.
"""

import mmap
from collections.abc import Container, Mapping
from dataclasses import replace

import numpy as np

from .ggml import GGMLType
from .quants import dequantize
from .reader import TensorInfo

SCALE, INPUT_SCALE = ".scale", ".input_scale"


def computable(
    tensors: Mapping[str, TensorInfo], kernel_types: Container[GGMLType]
) -> dict[str, TensorInfo]:
    """``tensors`` without sidecars; what is not of ``kernel_types``, or scaled, as float32 in
    memory of its own. ``.input_scale`` is for kernels that round activations, and is left out."""
    result: dict[str, TensorInfo] = {}
    for name, tensor in tensors.items():
        if name.endswith((SCALE, INPUT_SCALE)):
            continue
        scale = tensors.get(name.removesuffix(".weight") + SCALE)
        if scale is None and _is_usable(tensor, kernel_types):
            result[name] = tensor
        else:
            result[name] = decoded(tensor, scale)
    return result


def needs_decoding(tensor: TensorInfo, kernel_types: Container[GGMLType]) -> bool:
    """Whether ``computable`` would decode a tensor for its type alone."""
    return not _is_usable(tensor, kernel_types)


def decoded(tensor: TensorInfo, scale: TensorInfo | None = None) -> TensorInfo:
    """The tensor as F32; ``scale`` is one factor, or one for each matrix of a stack."""
    values = dequantize(tensor.data, tensor.type, tensor.shape)
    if scale is not None:
        factors = dequantize(scale.data, scale.type, scale.shape).reshape(-1)
        values *= factors.reshape(-1, *[1] * (values.ndim - 1))
    memory = mmap.mmap(-1, values.nbytes)
    np.frombuffer(memory, np.float32)[:] = values.reshape(-1)
    return replace(
        tensor, type=GGMLType.F32, offset=0, nbytes=values.nbytes, mapping=memory, in_file=False
    )


def _is_usable(tensor: TensorInfo, kernel_types: Container[GGMLType]) -> bool:
    if len(tensor.shape) == 1 or tensor.name.endswith("ssm_conv1d.weight"):
        return tensor.type is GGMLType.F32
    return tensor.type in kernel_types
