"""From the tensors of a Qwen3.5/3.6 checkpoint to those of a GGUF: names, order and arithmetic.

Two things surprise. Norm weights are stored minus one and get it back here, except the norm inside
the linear attention. And value heads move from grouped order (all heads of key head 0 first) to
tiled order (head 0 of every key head first), because ggml broadcasts key heads by tiling.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from gguf_hybrid.errors import ConfigError, GGUFError

from .convert_checkpoint import Array, SourceTensor

GLOBAL_NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
MTP_NAMES = {
    "fc.weight": "nextn.eh_proj.weight",
    "pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "norm.weight": "nextn.shared_head_norm.weight",
}
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}
FUSED_EXPERTS = "mlp.experts.gate_up_proj"
EXPERT = re.compile(r"mlp\.experts\.(?P<expert>\d+)\.(?P<part>gate|up|down)_proj\.weight")
LAYER = re.compile(r"(?P<mtp>mtp\.)?layers\.(?P<layer>\d+)\.(?P<rest>.+)")
NOT_WEIGHTS = (".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")


@dataclass(frozen=True)
class PlannedTensor:
    """A GGUF tensor with its final shape (numpy order); ``slabs`` computes it piece by piece."""

    name: str
    shape: tuple[int, ...]
    slabs: Callable[[], Iterable[Array]]


@dataclass(frozen=True)
class Heads:
    """The linear attention's heads: ``n_k`` key and ``n_v`` value heads, ``dim_k``, ``dim_v``."""

    n_k: int
    n_v: int
    dim_k: int
    dim_v: int

    @property
    def n_qk_rows(self) -> int:
        """Rows of the fused projection before the value rows."""
        return 2 * self.n_k * self.dim_k


@dataclass(frozen=True)
class Selection:
    """What to take: ``n_layer`` trunk layers, ``n_mtp`` MTP layers (0: none), or only the MTP."""

    n_layer: int
    n_mtp: int
    mtp_only: bool = False


@dataclass
class _Experts:
    """Per-expert tensors of one layer until all of them have been met."""

    parts: dict[str, dict[int, SourceTensor]] = field(
        default_factory=lambda: {"down": {}, "gate": {}, "up": {}}
    )

    def complete(self, n_expert: int) -> bool:
        return all(len(experts) == n_expert for experts in self.parts.values())


def text_name(name: str) -> str | None:
    """The name without the layout's prefixes; None for the vision tower and derived buffers."""
    name = name.replace("language_model.", "")
    if "visual." in name or name.endswith(NOT_WEIGHTS):
        return None
    return name.removeprefix("model.")


def count_mtp_layers(names: Iterable[str]) -> int:
    """Number of MTP layers among the tensor names of a checkpoint."""
    layers = [LAYER.fullmatch(text_name(name) or "") for name in names]
    return 1 + max((int(m["layer"]) for m in layers if m and m["mtp"]), default=-1)


def plan_tensors(
    tensors: Mapping[str, SourceTensor], heads: Heads, selection: Selection, n_expert: int
) -> list[PlannedTensor]:
    """The GGUF tensors in llama.cpp's order; per-expert weights appear with their last expert.

    Raises GGUFError for a tensor the architecture does not have, ConfigError for missing experts.
    """
    planned: list[PlannedTensor] = []
    experts: dict[int, _Experts] = {}
    for source in tensors.values():
        name = text_name(source.name)
        if name is None or not _wanted(name, selection):
            continue
        layer, rest = _layer_and_rest(name, source, selection)
        if match := EXPERT.fullmatch(rest):
            group = experts.setdefault(layer, _Experts())
            group.parts[match["part"]][int(match["expert"])] = source
            if group.complete(n_expert):
                planned += _stacked_experts(layer, experts.pop(layer), n_expert)
        else:
            planned += _converted(layer, rest, source, heads)
    for layer in experts:
        raise ConfigError(f"layer {layer}: the checkpoint lacks some of num_experts={n_expert}")
    return planned


def _wanted(name: str, selection: Selection) -> bool:
    if name.startswith("mtp."):
        return selection.n_mtp > 0
    return not selection.mtp_only or name in GLOBAL_NAMES


def _layer_and_rest(name: str, source: SourceTensor, selection: Selection) -> tuple[int, str]:
    """Block index (-1: none) and the GGUF name, or the HF rest of a tensor that is reshaped."""
    if name in GLOBAL_NAMES:
        return -1, GLOBAL_NAMES[name]
    if (mtp_name := MTP_NAMES.get(name.removeprefix("mtp."))) and name.startswith("mtp."):
        return selection.n_layer, mtp_name
    match = LAYER.fullmatch(name)
    if match is not None:
        layer = int(match["layer"]) + (selection.n_layer if match["mtp"] else 0)
        if not match["mtp"] and layer >= selection.n_layer:
            raise GGUFError(
                f"{source.file}: tensor {source.name}: num_hidden_layers is {selection.n_layer}"
            )
        rest = match["rest"].removesuffix(".weight") if ".experts." in name else match["rest"]
        if rest in LAYER_NAMES or rest == FUSED_EXPERTS:
            return layer, LAYER_NAMES.get(rest, rest)
        if EXPERT.fullmatch(match["rest"]):
            return layer, match["rest"]
    raise GGUFError(f"{source.file}: tensor {source.name} is not part of a Qwen3.5 text model")


def _converted(layer: int, name: str, source: SourceTensor, heads: Heads) -> list[PlannedTensor]:
    prefix = f"blk.{layer}." if layer >= 0 else ""
    if name == FUSED_EXPERTS:
        return [
            _half_of_experts(f"{prefix}ffn_gate_exps.weight", source, 0),
            _half_of_experts(f"{prefix}ffn_up_exps.weight", source, 1),
        ]
    shape = source.shape
    if name == "ssm_conv1d.weight":
        if shape[-1] == 1:
            raise GGUFError(
                f"{source.file}: tensor {source.name} has MLX's layout, and so have the norms:"
                " convert the original checkpoint"
            )
        shape = tuple(n for n in shape if n != 1)
    transform = _transform(name, heads)
    if transform is None:
        return [PlannedTensor(prefix + name, shape, source.slabs)]
    return [PlannedTensor(prefix + name, shape, partial(_whole, source, transform))]


def _whole(source: SourceTensor, transform: Callable[[Array], Array]) -> Iterator[Array]:
    yield transform(source.read())


def _transform(name: str, heads: Heads) -> Callable[[Array], Array] | None:
    """The arithmetic and the reordering of one tensor; None if its bytes stay as they are."""
    if name.endswith("norm.weight") and name != "ssm_norm.weight":
        return lambda weight: _in_source_precision(weight, lambda x: x + np.float32(1))
    tile = partial(tile_heads, heads=heads)
    if name == "ssm_a":
        return lambda a_log: tile(_in_source_precision(a_log, _negative_exp), dim=1)
    if name in ("ssm_dt.bias", "ssm_alpha.weight", "ssm_beta.weight"):
        return partial(tile, dim=1)
    if name == "attn_gate.weight":
        return partial(tile, dim=heads.dim_v)
    if name == "ssm_out.weight":
        return lambda weight: tile(weight.T, dim=heads.dim_v).T
    if name == "attn_qkv.weight":
        return lambda weight: _tile_values(weight, heads)
    if name == "ssm_conv1d.weight":
        return lambda weight: _tile_values(weight.squeeze(), heads)
    return None


def tile_heads(rows: Array, heads: Heads, dim: int) -> Array:
    """(n_v·dim, …): value head g·r + j of key head g, of r each, moves to place j·n_k + g."""
    grouped = rows.reshape(heads.n_k, heads.n_v // heads.n_k, dim, *rows.shape[1:])
    return np.ascontiguousarray(grouped.swapaxes(0, 1)).reshape(rows.shape)


def _tile_values(rows: Array, heads: Heads) -> Array:
    """Query and key rows stay; the value rows behind them are tiled."""
    values = tile_heads(rows[heads.n_qk_rows :], heads, heads.dim_v)
    return np.concatenate([rows[: heads.n_qk_rows], values])


def _negative_exp(a_log: Array) -> Array:
    """-exp in float32, correctly rounded by way of float64."""
    return np.asarray(-np.exp(a_log.astype(np.float64)), np.float32)


def _in_source_precision(weight: Array, function: Callable[[Array], Array]) -> Array:
    """llama.cpp computes float16 sources in float16 and everything else in float32."""
    result = function(weight.astype(np.float32))
    return result.astype(np.float16) if weight.dtype == np.float16 else result


def _half_of_experts(name: str, source: SourceTensor, half: int) -> PlannedTensor:
    """Gate (0) or up (1) of the fused (n_expert, 2·n_ff, n_embd) weight."""
    if len(source.shape) != 3 or source.shape[1] % 2:
        raise GGUFError(f"{source.file}: tensor {source.name} has the shape {list(source.shape)}")
    n_expert, n_ff, n_embd = source.shape[0], source.shape[1] // 2, source.shape[2]

    def slabs() -> Iterator[Array]:
        for expert in range(n_expert):
            rows = source.rows(expert, expert + 1)
            yield rows[:, half * n_ff : (half + 1) * n_ff]

    return PlannedTensor(name, (n_expert, n_ff, n_embd), slabs)


def _stacked_experts(layer: int, group: _Experts, n_expert: int) -> list[PlannedTensor]:
    return [
        _stack(f"blk.{layer}.ffn_{part}_exps.weight", [experts[i] for i in range(n_expert)])
        for part, experts in group.parts.items()
    ]


def _stack(name: str, sources: list[SourceTensor]) -> PlannedTensor:
    shape = sources[0].shape
    for source in sources:
        if source.shape != shape:
            raise GGUFError(f"{source.file}: tensor {source.name} differs in shape from expert 0")

    def slabs() -> Iterator[Array]:
        for source in sources:
            yield source.read()[np.newaxis]

    return PlannedTensor(name, (len(sources), *shape), slabs)
