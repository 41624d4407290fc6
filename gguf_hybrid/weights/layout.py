"""Which tensors a hybrid model consists of, and their shapes.

Shapes are in numpy order, linear weights (out, in). Names are GGUF's, and three of them mislead:
``post_attention_norm`` is the norm before the feed-forward; ``attn_gate`` is the z projection of a
Gated DeltaNet block (the gate of full attention lies inside ``attn_q``, head by head); ``attn_qkv``
means the q, k, v channels of the convolution in a Gated DeltaNet block, but the fused ``attn_q``,
``attn_k``, ``attn_v`` in an attention block.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import GGUFError

from .ggml import GGMLType
from .qwen3next import split_beta_alpha
from .reader import TensorInfo

Shape = tuple[int, ...]

# Fused weights and the parts they replace, joined along the rows in this order.
FUSED = {
    "attn_qkv.weight": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    "ffn_gate_up_exps.weight": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
}
# Of old qwen3next files: q, k, v, z interleaved by K head, so that no row range is a projection.
INTERLEAVED = "ssm_in.weight"
FLOAT_TYPES = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.F64})
NO_WEIGHT_TYPES = frozenset(
    {GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64, GGMLType.Q8_1, GGMLType.Q8_K}
)
MAX_NAMES_SHOWN = 3


@dataclass(frozen=True)
class ModelTensors:
    """The tensors of a file after the check: what the model runs on, and the MTP blocks."""

    trunk: Mapping[str, TensorInfo]
    mtp: Mapping[str, TensorInfo]


def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name and shape of every tensor of the trunk, nothing fused."""
    tensors = {
        "token_embd.weight": (config.n_vocab, config.n_embd),
        "output_norm.weight": (config.n_embd,),
    }
    if not config.tied:
        tensors["output.weight"] = (config.n_vocab, config.n_embd)
    for i, recurrent in enumerate(config.recurrent_layers):
        mixer = _delta_net(config) if recurrent else _attention(config)
        tensors |= _block(i, mixer | _norms(config) | _feed_forward(config))
    return tensors


def expected_mtp_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name and shape of the required tensors of the MTP blocks, nothing fused."""
    tensors: dict[str, Shape] = {}
    h = config.n_embd
    nextn = {
        "nextn.eh_proj.weight": (h, 2 * h),
        "nextn.enorm.weight": (h,),
        "nextn.hnorm.weight": (h,),
    }
    for i in range(config.n_layer, config.n_layer + config.n_nextn):
        tensors |= _block(i, _attention(config) | _norms(config) | _feed_forward(config) | nextn)
    return tensors


def check_tensors(
    config: ModelConfig, tensors: Mapping[str, TensorInfo], source: str = "model"
) -> ModelTensors:
    """Compare a file with what the architecture needs, and set its MTP blocks aside.

    Accepted besides `expected_tensors`: the fused forms, a 1-D tensor with or without leading
    ones, ``.scale`` and ``.input_scale`` beside a weight, and qwen3next's ``ssm_ba``, which the
    result holds as ``ssm_beta`` and ``ssm_alpha``. Raises GGUFError naming tensors that are
    missing, unexpected, of the wrong shape or of a type that cannot be a weight.
    """
    _refuse_interleaved(tensors, source)
    if config.arch == "qwen3next":
        tensors = split_beta_alpha(config, tensors, source)
    trunk = _with_fused(expected_tensors(config), tensors)
    mtp = _with_fused(expected_mtp_tensors(config), tensors)
    required = trunk | mtp
    optional = _optional_mtp_tensors(config, tensors)
    known = required | optional
    sidecars = _sidecars(known, tensors)
    _refuse(source, "missing", required.keys() - tensors.keys())
    _refuse(source, "unexpected", tensors.keys() - known.keys() - sidecars.keys())
    for name, shape in (known | sidecars).items():
        _check_tensor(source, tensors[name], shape)
    aside = {name: t for name, t in tensors.items() if _is_mtp(config, name)}
    return ModelTensors(
        trunk={name: t for name, t in tensors.items() if name not in aside}, mtp=aside
    )


def _block(i: int, tensors: Mapping[str, Shape]) -> dict[str, Shape]:
    return {f"blk.{i}.{name}": shape for name, shape in tensors.items()}


def _norms(config: ModelConfig) -> dict[str, Shape]:
    return {
        "attn_norm.weight": (config.n_embd,),
        "post_attention_norm.weight": (config.n_embd,),
    }


def _attention(config: ModelConfig) -> dict[str, Shape]:
    h, q = config.n_embd, config.n_head * config.head_dim
    kv = config.n_head_kv * config.head_dim
    return {
        "attn_q.weight": (2 * q, h),
        "attn_k.weight": (kv, h),
        "attn_v.weight": (kv, h),
        "attn_output.weight": (h, q),
        "attn_q_norm.weight": (config.head_dim,),
        "attn_k_norm.weight": (config.head_dim,),
    }


def _delta_net(config: ModelConfig) -> dict[str, Shape]:
    h, v_heads = config.n_embd, config.ssm_time_step_rank
    return {
        "attn_qkv.weight": (config.conv_dim, h),
        "attn_gate.weight": (config.value_dim, h),
        "ssm_beta.weight": (v_heads, h),
        "ssm_alpha.weight": (v_heads, h),
        "ssm_conv1d.weight": (config.conv_dim, config.ssm_conv_kernel),
        "ssm_dt.bias": (v_heads,),
        "ssm_a": (v_heads,),
        "ssm_norm.weight": (config.ssm_state_size,),
        "ssm_out.weight": (h, config.value_dim),
    }


def _feed_forward(config: ModelConfig) -> dict[str, Shape]:
    h = config.n_embd
    if not config.is_moe:
        return {
            "ffn_gate.weight": (config.n_ff, h),
            "ffn_up.weight": (config.n_ff, h),
            "ffn_down.weight": (h, config.n_ff),
        }
    experts, routed, shared = config.n_expert, config.n_ff_exp, config.n_ff_shexp
    return {
        "ffn_gate_inp.weight": (experts, h),
        "ffn_gate_exps.weight": (experts, routed, h),
        "ffn_up_exps.weight": (experts, routed, h),
        "ffn_down_exps.weight": (experts, h, routed),
        "ffn_gate_inp_shexp.weight": (h,),
        "ffn_gate_shexp.weight": (shared, h),
        "ffn_up_shexp.weight": (shared, h),
        "ffn_down_shexp.weight": (h, shared),
    }


def _optional_mtp_tensors(config: ModelConfig, present: Iterable[str]) -> dict[str, Shape]:
    head = (config.n_vocab, config.n_embd)
    tensors: dict[str, Shape] = {}
    for i in range(config.n_layer, config.n_layer + config.n_nextn):
        tensors[f"blk.{i}.nextn.shared_head_norm.weight"] = (config.n_embd,)
        tensors[f"blk.{i}.nextn.embed_tokens.weight"] = head
        tensors[f"blk.{i}.nextn.shared_head_head.weight"] = head
    return {name: shape for name, shape in tensors.items() if name in present}


def _is_mtp(config: ModelConfig, name: str) -> bool:
    blocks = range(config.n_layer, config.n_layer + config.n_nextn)
    return any(name.startswith(f"blk.{i}.") for i in blocks)


def _with_fused(expected: dict[str, Shape], present: Iterable[str]) -> dict[str, Shape]:
    """``expected`` with the parts of each fused tensor that is present replaced by it."""
    result = dict(expected)
    for name in present:
        prefix, fused = _split_name(name)
        parts = [prefix + part for part in FUSED.get(fused, ())]
        if parts and all(part in result for part in parts):
            shapes = [result.pop(part) for part in parts]
            rows = sum(shape[-2] for shape in shapes)
            result[name] = (*shapes[0][:-2], rows, shapes[0][-1])
    return result


def _split_name(name: str) -> tuple[str, str]:
    """``blk.3.attn_q.weight`` is ("blk.3.", "attn_q.weight")."""
    block, dot, rest = name.partition(".")
    index, second_dot, base = rest.partition(".")
    return (block + dot + index + second_dot, base) if block == "blk" else ("", name)


def _sidecars(known: Mapping[str, Shape], present: Iterable[str]) -> dict[str, Shape]:
    """Scales beside a weight: one value, or one per expert of a stack."""
    sidecars: dict[str, Shape] = {}
    for name in present:
        base, _, suffix = name.rpartition(".")
        weight = known.get(f"{base}.weight")
        if weight is not None and suffix in ("scale", "input_scale"):
            sidecars[name] = weight[:1] if len(weight) == 3 else (1,)
    return sidecars


def _check_tensor(source: str, tensor: TensorInfo, shape: Shape) -> None:
    if _squeezed(tensor.shape) != _squeezed(shape):
        raise GGUFError(
            f"{source}: tensor {tensor.name} has the shape {tensor.shape}, expected {shape}"
        )
    if tensor.type in NO_WEIGHT_TYPES:
        raise GGUFError(f"{source}: tensor {tensor.name} of type {tensor.type.name} is no weight")
    if len(_squeezed(shape)) < 2 and tensor.type not in FLOAT_TYPES:
        raise GGUFError(
            f"{source}: tensor {tensor.name} of type {tensor.type.name} must be a float type"
        )


def _squeezed(shape: Shape) -> Shape:
    """Without leading ones: GGUF does not tell {H} from {H, 1}."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _refuse_interleaved(tensors: Iterable[str], source: str) -> None:
    for name in tensors:
        if _split_name(name)[1] == INTERLEAVED:
            raise GGUFError(
                f"{source}: tensor {name}: the old qwen3next layout is not supported,"
                " convert the model again"
            )


def _refuse(source: str, what: str, names: set[str]) -> None:
    if not names:
        return
    shown = ", ".join(sorted(names)[:MAX_NAMES_SHOWN])
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    raise GGUFError(f"{source}: {what} tensor {shown}{more}")
