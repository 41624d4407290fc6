"""Blocks of a model as the CPU library wants them: structures of addresses into the mapped file.

Nothing is copied but the convolution taps, which the kernels read tap by tap. Fused tensors are
split by address. Every structure keeps alive what it points at.
"""

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.cpu import bindings
from gguf_hybrid.cpu.bindings import Op
from gguf_hybrid.cpu.library import Weight
from gguf_hybrid.errors import GGUFError
from gguf_hybrid.memory.store import Floats
from gguf_hybrid.weights.ggml import GGMLType, row_nbytes
from gguf_hybrid.weights.reader import TensorInfo

Tensors = Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One operation's weights: the structure, and the objects that own what it points at."""

    op: Op
    struct: ctypes.Structure
    owners: tuple[TensorInfo | Floats, ...]

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)


def memory_nbytes(prepared: Iterable[Prepared]) -> int:
    """Bytes that these weights take beside the mapped file, shared owners counted once."""
    owners = {id(owner): owner for p in prepared for owner in p.owners}.values()
    return sum(o.nbytes for o in owners if not isinstance(o, TensorInfo) or not o.in_file)


def matrix(tensor: TensorInfo) -> Weight:
    """A 2-D weight, or a 3-D stack of expert weights; 1-D counts as one row. Its pages are mapped
    from here on."""
    tensor.map_pages()
    *stack, n, k = (1, *tensor.shape) if len(tensor.shape) == 1 else tensor.shape
    row = row_nbytes(tensor.type, k)
    return Weight(
        data=tensor.address,
        n=n,
        k=k,
        row_stride=row,
        n_slabs=stack[0] if stack else 1,
        slab_stride=n * row,
        type=int(tensor.type),
    )


def rows_of(whole: Weight, first: int, n: int) -> Weight:
    """Rows ``first`` ... ``first + n`` of every matrix of ``whole``, in place."""
    part = Weight.from_buffer_copy(whole)
    part.data, part.n = whole.data + first * whole.row_stride, n
    return part


def vector(tensor: TensorInfo) -> int:
    """The address of a float32 vector in the file."""
    if tensor.type is not GGMLType.F32:
        raise GGUFError(f"{tensor.file}: tensor {tensor.name} is {tensor.type.name}, expected F32")
    return tensor.address


def embedding(tensor: TensorInfo) -> Prepared:
    return Prepared(Op.EMBED, matrix(tensor), (tensor,))


def head(output_norm: TensorInfo, output: TensorInfo) -> Prepared:
    struct = bindings.Head(norm=vector(output_norm), output=matrix(output))
    return Prepared(Op.LOGITS, struct, (output_norm, output))


def mixer(config: ModelConfig, recurrent: bool, tensors: Tensors) -> Prepared:
    return _delta_net(tensors) if recurrent else _attention(config, tensors)


def _delta_net(t: Tensors) -> Prepared:
    taps = t["ssm_conv1d.weight"]
    vector(taps)
    conv = np.ascontiguousarray(taps.data.view(np.float32).reshape(taps.shape).T)
    struct = bindings.DeltaNet(
        norm=vector(t["attn_norm.weight"]),
        conv=conv.ctypes.data,
        dt_bias=vector(t["ssm_dt.bias"]),
        a=vector(t["ssm_a"]),
        ssm_norm=vector(t["ssm_norm.weight"]),
        qkv=matrix(t["attn_qkv.weight"]),
        gate=matrix(t["attn_gate.weight"]),
        beta=matrix(t["ssm_beta.weight"]),
        alpha=matrix(t["ssm_alpha.weight"]),
        out=matrix(t["ssm_out.weight"]),
    )
    return Prepared(Op.DELTA_NET, struct, (conv, *t.values()))


def _attention(config: ModelConfig, t: Tensors) -> Prepared:
    if "attn_qkv.weight" in t:
        fused = matrix(t["attn_qkv.weight"])
        n_q = 2 * config.n_head * config.head_dim
        n_kv = config.n_head_kv * config.head_dim
        q, k = rows_of(fused, 0, n_q), rows_of(fused, n_q, n_kv)
        v = rows_of(fused, n_q + n_kv, n_kv)
    else:
        q, k, v = (matrix(t[f"attn_{name}.weight"]) for name in "qkv")
    struct = bindings.Attention(
        norm=vector(t["attn_norm.weight"]),
        q_norm=vector(t["attn_q_norm.weight"]),
        k_norm=vector(t["attn_k_norm.weight"]),
        q=q,
        k=k,
        v=v,
        out=matrix(t["attn_output.weight"]),
    )
    return Prepared(Op.ATTEND, struct, tuple(t.values()))


def feed_forward(t: Tensors) -> Prepared:
    norm = vector(t["post_attention_norm.weight"])
    if "ffn_gate_inp.weight" not in t:
        parts = {name: matrix(t[f"ffn_{name}.weight"]) for name in ("gate", "up", "down")}
        return Prepared(Op.DENSE, bindings.Dense(norm=norm, **parts), tuple(t.values()))
    parts = {"router": matrix(t["ffn_gate_inp.weight"]), "down": matrix(t["ffn_down_exps.weight"])}
    if "ffn_gate_up_exps.weight" in t:
        fused = matrix(t["ffn_gate_up_exps.weight"])
        width = fused.n // 2
        parts |= {"gate": rows_of(fused, 0, width), "up": rows_of(fused, width, width)}
    else:
        parts |= {name: matrix(t[f"ffn_{name}_exps.weight"]) for name in ("gate", "up")}
    if "ffn_up_shexp.weight" in t:
        parts["shared_router"] = matrix(t["ffn_gate_inp_shexp.weight"])
        for name in ("gate", "up", "down"):
            parts[f"shared_{name}"] = matrix(t[f"ffn_{name}_shexp.weight"])
    return Prepared(Op.EXPERTS, bindings.Experts(norm=norm, **parts), tuple(t.values()))
