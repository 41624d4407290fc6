"""Small random models for tests of single operations: a config, and tensors that live in memory."""

import mmap
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gguf_hybrid.config import ModelConfig, RopeScaling
from gguf_hybrid.step import Row
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.reader import TensorInfo

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Arrays = dict[str, Floats]

BASE = ModelConfig(
    arch="qwen35",
    n_vocab=320,
    n_ctx_train=4096,
    n_embd=64,
    n_layer=2,
    n_nextn=0,
    recurrent_layers=(True, False),
    tied=True,
    rms_eps=1e-6,
    n_head=4,
    n_head_kv=2,
    head_dim=64,
    attention_scale=0.125,
    n_rot=16,
    rope_freq_base=1e4,
    rope_sections=(3, 3, 2, 0),
    rope_scaling=RopeScaling("none", 1.0, 4096, 0.0),
    ssm_group_count=2,
    ssm_time_step_rank=6,
    ssm_state_size=64,
    ssm_conv_kernel=4,
    tiled_v_heads=True,
    n_ff=96,
    n_expert=0,
    n_expert_used=0,
    n_ff_exp=0,
    n_ff_shexp=0,
    expert_weights_scale=0.0,
)
MOE = replace(BASE, n_expert=9, n_expert_used=3, n_ff_exp=48, n_ff_shexp=80, n_ff=0)


def config(**changes: object) -> ModelConfig:
    return replace(BASE, **changes)  # type: ignore[arg-type]


def tensor(name: str, values: Floats) -> TensorInfo:
    """An F32 tensor as a file would map it."""
    data = np.ascontiguousarray(values, np.float32)
    memory = mmap.mmap(-1, data.nbytes)
    memory[:] = data.tobytes()
    return TensorInfo(name, GGMLType.F32, data.shape, Path("test"), 0, data.nbytes, memory)


def tensors(arrays: Arrays) -> dict[str, TensorInfo]:
    return {name: tensor(name, values) for name, values in arrays.items()}


def _normal(rng: np.random.Generator, *shape: int) -> Floats:
    return (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)


def _near_one(rng: np.random.Generator, n: int) -> Floats:
    return rng.uniform(0.5, 1.5, n).astype(np.float32)


def delta_net_arrays(c: ModelConfig, rng: np.random.Generator) -> Arrays:
    n_v = c.ssm_time_step_rank
    return {
        "attn_norm.weight": _near_one(rng, c.n_embd),
        "attn_qkv.weight": _normal(rng, c.conv_dim, c.n_embd),
        "attn_gate.weight": _normal(rng, c.value_dim, c.n_embd),
        "ssm_beta.weight": _normal(rng, n_v, c.n_embd),
        "ssm_alpha.weight": _normal(rng, n_v, c.n_embd),
        "ssm_conv1d.weight": _normal(rng, c.conv_dim, c.ssm_conv_kernel),
        "ssm_dt.bias": rng.normal(size=n_v).astype(np.float32),
        "ssm_a": -np.exp(rng.uniform(-2, 1, n_v)).astype(np.float32),
        "ssm_norm.weight": _near_one(rng, c.ssm_state_size),
        "ssm_out.weight": _normal(rng, c.n_embd, c.value_dim),
    }


def attention_arrays(c: ModelConfig, rng: np.random.Generator) -> Arrays:
    q_dim, kv_dim = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
    return {
        "attn_norm.weight": _near_one(rng, c.n_embd),
        "attn_q.weight": _normal(rng, 2 * q_dim, c.n_embd),
        "attn_k.weight": _normal(rng, kv_dim, c.n_embd),
        "attn_v.weight": _normal(rng, kv_dim, c.n_embd),
        "attn_q_norm.weight": _near_one(rng, c.head_dim) * 3,
        "attn_k_norm.weight": _near_one(rng, c.head_dim) * 3,
        "attn_output.weight": _normal(rng, c.n_embd, q_dim),
    }


def feed_forward_arrays(c: ModelConfig, rng: np.random.Generator) -> Arrays:
    arrays = {"post_attention_norm.weight": _near_one(rng, c.n_embd)}
    if not c.is_moe:
        return arrays | _swiglu_arrays(rng, "", c.n_ff, c.n_embd)
    n, width, e = c.n_embd, c.n_ff_exp, c.n_expert
    arrays |= {
        "ffn_gate_inp.weight": _normal(rng, e, n) * 4,
        "ffn_gate_exps.weight": _normal(rng, e, width, n),
        "ffn_up_exps.weight": _normal(rng, e, width, n),
        "ffn_down_exps.weight": _normal(rng, e, n, width),
    }
    if c.n_ff_shexp:
        arrays["ffn_gate_inp_shexp.weight"] = _normal(rng, n)
        arrays |= _swiglu_arrays(rng, "_shexp", c.n_ff_shexp, n)
    return arrays


def _swiglu_arrays(rng: np.random.Generator, suffix: str, width: int, n: int) -> Arrays:
    return {
        f"ffn_gate{suffix}.weight": _normal(rng, width, n),
        f"ffn_up{suffix}.weight": _normal(rng, width, n),
        f"ffn_down{suffix}.weight": _normal(rng, n, width),
    }


def row(
    start: int,
    n: int,
    blocks: list[int],
    read: int = -1,
    write: tuple[int, ...] = (0,),
    n_logits: int = 0,
) -> Row:
    """A row of arbitrary tokens; operations that take activations do not look at them."""
    tokens = np.arange(start, start + n, dtype=np.int32) % BASE.n_vocab
    return Row(0, start, tokens, read, write, np.array(blocks, np.int32), n_logits)
