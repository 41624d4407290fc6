"""The blocks of a model as device addresses, fused tensors cut by address."""

from dataclasses import dataclass

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import BackendError

from .base import Tensors
from .cuda_weights import Matrix, Uploader


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Plain ints are addresses of float32 vectors; ``taps`` is [conv_dim, conv_kernel]."""

    norm: int
    qkv: Matrix
    gate: Matrix
    beta: Matrix
    alpha: Matrix
    taps: int
    dt_bias: int
    a: int
    ssm_norm: int
    out: Matrix


@dataclass(frozen=True, slots=True)
class Attention:
    norm: int
    q: Matrix
    k: Matrix
    v: Matrix
    q_norm: int
    k_norm: int
    out: Matrix


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Routed experts, a shared expert, or both; a dense feed-forward is a shared expert alone."""

    norm: int
    router: Matrix | None
    gate: Matrix | None
    up: Matrix | None
    down: Matrix | None
    shared_router: Matrix | None
    shared_gate: Matrix | None
    shared_up: Matrix | None
    shared_down: Matrix | None


@dataclass(frozen=True, slots=True)
class Head:
    norm: int
    output: Matrix


def delta_net(load: Uploader, t: Tensors) -> DeltaNet:
    return DeltaNet(
        norm=load.vector(t["attn_norm.weight"]),
        qkv=load.matrix(t["attn_qkv.weight"]),
        gate=load.matrix(t["attn_gate.weight"]),
        beta=load.matrix(t["ssm_beta.weight"]),
        alpha=load.matrix(t["ssm_alpha.weight"]),
        taps=load.vector(t["ssm_conv1d.weight"]),
        dt_bias=load.vector(t["ssm_dt.bias"]),
        a=load.vector(t["ssm_a"]),
        ssm_norm=load.vector(t["ssm_norm.weight"]),
        out=load.matrix(t["ssm_out.weight"]),
    )


def attention(load: Uploader, config: ModelConfig, t: Tensors) -> Attention:
    if "attn_qkv.weight" in t:
        fused = load.matrix(t["attn_qkv.weight"])
        n_q, n_kv = 2 * config.n_head * config.head_dim, config.n_head_kv * config.head_dim
        q, k = fused.rows(0, n_q), fused.rows(n_q, n_kv)
        v = fused.rows(n_q + n_kv, n_kv)
    else:
        q, k, v = (load.matrix(t[f"attn_{name}.weight"]) for name in "qkv")
    return Attention(
        norm=load.vector(t["attn_norm.weight"]),
        q=q,
        k=k,
        v=v,
        q_norm=load.vector(t["attn_q_norm.weight"]),
        k_norm=load.vector(t["attn_k_norm.weight"]),
        out=load.matrix(t["attn_output.weight"]),
    )


def feed_forward(load: Uploader, t: Tensors) -> FeedForward:
    norm = load.vector(t["post_attention_norm.weight"])
    if "ffn_gate_inp.weight" not in t:
        dense = [load.matrix(t[f"ffn_{name}.weight"]) for name in ("gate", "up", "down")]
        _same_type(*dense[:2])
        return FeedForward(norm, None, None, None, None, None, *dense)
    if "ffn_gate_up_exps.weight" in t:
        fused = load.matrix(t["ffn_gate_up_exps.weight"])
        gate, up = fused.rows(0, fused.n // 2), fused.rows(fused.n // 2, fused.n // 2)
    else:
        gate, up = (load.matrix(t[f"ffn_{name}_exps.weight"]) for name in ("gate", "up"))
        _same_type(gate, up)
    shared: list[Matrix | None] = [None] * 4
    if "ffn_up_shexp.weight" in t:
        names = ("gate_inp_shexp", "gate_shexp", "up_shexp", "down_shexp")
        parts = [load.matrix(t[f"ffn_{name}.weight"]) for name in names]
        _same_type(parts[1], parts[2])
        shared = [*parts]
    router, down = load.matrix(t["ffn_gate_inp.weight"]), load.matrix(t["ffn_down_exps.weight"])
    return FeedForward(norm, router, gate, up, down, *shared)


def _same_type(gate: Matrix, up: Matrix) -> None:
    if gate.type != up.type:
        raise BackendError(f"cuda: gate is {gate.type.name} and up {up.type.name} in one block")
