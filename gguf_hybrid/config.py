"""The numbers of a model, read from GGUF metadata and checked once.

Nothing is known by model name: every width comes from a key, and a key that is missing, out of
range or at odds with another is a GGUFError that names it. Keys are those llama.cpp reads for
``qwen35``, ``qwen35moe`` and ``qwen3next``. ``block_count`` includes the MTP blocks at the end of
the file; ``n_layer`` does not.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from .errors import GGUFError
from .keys import MAX_TOKENS, MAX_WIDTH, Keys, shown

ARCHITECTURES = ("qwen35", "qwen35moe", "qwen3next")
CACHE_TYPE_NBYTES = {"f32": 4, "f16": 2, "bf16": 2}
ROPE_SCALING_TYPES = ("none", "linear", "yarn")
MAX_LAYERS = 512
MAX_EXPERTS = 1 << 16
MAX_CONV_KERNEL = 64


@dataclass(frozen=True)
class RopeScaling:
    """``rope.scaling.*``: how rotary angles are stretched for contexts beyond the trained one.

    With ``type`` "yarn" the angles between the ``beta_fast`` and ``beta_slow`` corrections are a
    mix of stretched and plain ones, weighted by ``ext_factor``; "linear" stretches all of them.
    """

    type: str
    factor: float
    original_context_length: int
    ext_factor: float
    attn_factor: float = 1.0
    yarn_attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    @property
    def freq_scale(self) -> float:
        """Factor on the positions of stretched angles."""
        return 1.0 if self.type == "none" else 1.0 / self.factor

    @property
    def magnitude(self) -> float:
        """Factor on the rotated part of q and of k; 1 unless stretched by YaRN."""
        if self.ext_factor == 0:
            return self.attn_factor * self.yarn_attn_factor
        return self.attn_factor * (1.0 + 0.1 * math.log(max(1.0, 1.0 / self.freq_scale)))


@dataclass(frozen=True)
class ModelConfig:
    """Every number of a hybrid model. Widths are in elements, ``n_layer`` counts the trunk.

    GDN names: ``ssm_group_count`` K heads, ``ssm_time_step_rank`` V heads, ``ssm_state_size`` the
    head dimension of both. V head ``h`` uses K head ``h % ssm_group_count`` where
    ``tiled_v_heads``, else ``h // v_heads_per_k_head``. Dense models have ``n_expert`` 0 and
    ``n_ff``; the others ``n_ff_exp`` (routed) and ``n_ff_shexp`` (shared expert).
    """

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_nextn: int
    recurrent_layers: tuple[bool, ...]
    tied: bool
    rms_eps: float
    # full attention
    n_head: int
    n_head_kv: int
    head_dim: int
    attention_scale: float
    n_rot: int
    rope_freq_base: float
    rope_sections: tuple[int, ...]
    rope_scaling: RopeScaling
    # Gated DeltaNet
    ssm_group_count: int
    ssm_time_step_rank: int
    ssm_state_size: int
    ssm_conv_kernel: int
    tiled_v_heads: bool
    # feed-forward
    n_ff: int
    n_expert: int
    n_expert_used: int
    n_ff_exp: int
    n_ff_shexp: int
    expert_weights_scale: float

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], tensors: Container[str], source: str = "model"
    ) -> "ModelConfig":
        """Read and check the metadata of a model file.

        ``tensors`` needs to answer only which names exist (tied head, MTP-only file); ``source``
        opens each message. Raises GGUFError for anything that is not a complete, supported model.
        """
        arch = _architecture(metadata, tensors, source)
        keys = Keys(metadata, arch, source)
        n_block = keys.count("block_count", high=MAX_LAYERS)
        n_nextn = keys.count("nextn_predict_layers", 0, low=0, high=n_block - 1)
        recurrent = _layer_types(keys, n_block, n_block - n_nextn)
        attention = [i for i, is_recurrent in enumerate(recurrent) if not is_recurrent]
        n_embd = keys.count("embedding_length")
        n_ctx_train = keys.count("context_length", high=MAX_TOKENS)
        n_head = keys.per_layer("attention.head_count", n_block, attention)
        head_dim = keys.count("attention.key_length", n_embd // n_head)
        config = cls(
            arch=arch,
            n_vocab=keys.length("tokenizer.ggml.tokens"),
            n_ctx_train=n_ctx_train,
            n_embd=n_embd,
            n_layer=n_block - n_nextn,
            n_nextn=n_nextn,
            recurrent_layers=recurrent,
            tied="output.weight" not in tensors,
            rms_eps=keys.number("attention.layer_norm_rms_epsilon", low=1e-12, high=1.0),
            n_head=n_head,
            n_head_kv=keys.per_layer("attention.head_count_kv", n_block, attention),
            head_dim=head_dim,
            attention_scale=keys.number("attention.scale", 0.0) or 1.0 / math.sqrt(head_dim),
            n_rot=keys.count("rope.dimension_count", head_dim, high=head_dim),
            rope_freq_base=keys.number("rope.freq_base", 10000.0, low=1.0),
            rope_sections=_rope_sections(keys),
            rope_scaling=_rope_scaling(keys, n_ctx_train),
            ssm_group_count=keys.count("ssm.group_count"),
            ssm_time_step_rank=keys.count("ssm.time_step_rank"),
            ssm_state_size=keys.count("ssm.state_size"),
            ssm_conv_kernel=keys.count("ssm.conv_kernel", low=2, high=MAX_CONV_KERNEL),
            tiled_v_heads=arch != "qwen3next",
            **_feed_forward(keys, n_block),
        )
        _check_consistency(config, keys)
        return config

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the full-attention layers of the trunk."""
        return tuple(i for i, recurrent in enumerate(self.recurrent_layers) if not recurrent)

    @property
    def delta_net_layers(self) -> tuple[int, ...]:
        """Indices of the Gated DeltaNet layers."""
        return tuple(i for i, recurrent in enumerate(self.recurrent_layers) if recurrent)

    @property
    def is_moe(self) -> bool:
        return self.n_expert > 0

    @property
    def v_heads_per_k_head(self) -> int:
        return self.ssm_time_step_rank // self.ssm_group_count

    @property
    def key_dim(self) -> int:
        return self.ssm_group_count * self.ssm_state_size

    @property
    def value_dim(self) -> int:
        return self.ssm_time_step_rank * self.ssm_state_size

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution, in the order q, k, v."""
        return 2 * self.key_dim + self.value_dim

    @property
    def conv_state_size(self) -> int:
        """f32 values of one layer's convolution state: the last ``ssm_conv_kernel - 1`` rows."""
        return (self.ssm_conv_kernel - 1) * self.conv_dim

    @property
    def delta_state_size(self) -> int:
        """f32 values of one layer's recurrent state: a square matrix per V head."""
        return self.ssm_time_step_rank * self.ssm_state_size**2

    @property
    def state_nbytes(self) -> int:
        """Bytes of one sequence's recurrent state over all layers (f32, one row)."""
        return 4 * (self.conv_state_size + self.delta_state_size) * len(self.delta_net_layers)

    def kv_nbytes_per_token(self, cache_type_k: str = "f16", cache_type_v: str = "f16") -> int:
        """Bytes of keys and values per token over the full-attention layers of the trunk."""
        width = CACHE_TYPE_NBYTES[cache_type_k] + CACHE_TYPE_NBYTES[cache_type_v]
        return self.n_head_kv * self.head_dim * width * len(self.attention_layers)


def _architecture(metadata: Mapping[str, Any], tensors: Container[str], source: str) -> str:
    """The architecture, if the file is a model of a supported one and holds its trunk."""
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise GGUFError(f"{source}: key general.architecture is missing or not a string")
    kind = metadata.get("general.type", "model")
    if not isinstance(kind, str):
        raise GGUFError(f"{source}: general.type is not a string")
    if kind == "mmproj" or arch == "clip":
        raise GGUFError(f"{source}: a vision projector (mmproj), not a model")
    if kind != "model":
        raise GGUFError(f"{source}: general.type is {shown(kind)}, not a model")
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise GGUFError(f"{source}: architecture {shown(arch)} is not supported (only {known})")
    if "blk.0.attn_norm.weight" not in tensors:
        if f"{arch}.nextn_predict_layers" in metadata:
            raise GGUFError(f"{source}: holds only the MTP block of a model, not the model")
        raise GGUFError(f"{source}: tensor blk.0.attn_norm.weight is missing")
    return arch


def _layer_types(keys: Keys, n_block: int, n_layer: int) -> tuple[bool, ...]:
    """True for each Gated DeltaNet layer of the trunk; MTP blocks are always full attention."""
    if "attention.recurrent_layers" in keys:
        name = "attention.recurrent_layers"
        entries = keys.array(name, n_block)
        if not all(isinstance(entry, int) and entry in (0, 1) for entry in entries):
            raise keys.fail(name, "holds something else than bools")
        recurrent = [bool(entry) for entry in entries]
        if any(recurrent[n_layer:]):
            raise keys.fail(name, "marks an MTP block as recurrent")
    else:
        name = "full_attention_interval"
        interval = keys.count(name, 4, high=MAX_LAYERS)
        recurrent = [(i + 1) % interval != 0 for i in range(n_layer)]
    if len(set(recurrent[:n_layer])) != 2:
        raise keys.fail(name, "leaves no hybrid: both kinds of layers are needed")
    return tuple(recurrent[:n_layer])


def _rope_sections(keys: Keys) -> tuple[int, ...]:
    """Rotated pairs per position axis; empty where there is one axis only."""
    name = "rope.dimension_sections"
    if keys.arch == "qwen3next":
        return ()
    sections = keys.array(name, 4)
    if not all(isinstance(n, int) and 0 <= n <= MAX_WIDTH for n in sections) or not sum(sections):
        raise keys.fail(name, f"is {sections}, not four counts")
    return tuple(sections)


def _rope_scaling(keys: Keys, n_ctx_train: int) -> RopeScaling:
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in ROPE_SCALING_TYPES:
        raise keys.fail("rope.scaling.type", f"is {kind!r}, not one of {ROPE_SCALING_TYPES}")
    for name in ("rope.scaling.alpha", "rope.scaling.yarn_log_multiplier"):
        if keys.number(name, 0.0) != 0.0:
            raise keys.fail(name, "is set, which is not supported")
    legacy_factor = keys.number("rope.scale_linear", 0.0)
    factor = keys.number("rope.scaling.factor", legacy_factor) or 1.0
    ext_factor = keys.number("rope.scaling.yarn_ext_factor", -1.0, low=-1.0)
    name = "rope.scaling.original_context_length"
    return RopeScaling(
        type=kind,
        factor=factor,
        original_context_length=keys.count(name, 0, low=0, high=MAX_TOKENS) or n_ctx_train,
        ext_factor=float(kind == "yarn") if ext_factor < 0 else ext_factor,
        attn_factor=keys.number("rope.scaling.attn_factor", 1.0),
        yarn_attn_factor=keys.number("rope.scaling.yarn_attn_factor", 1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )


class _FeedForward(TypedDict):
    n_ff: int
    n_expert: int
    n_expert_used: int
    n_ff_exp: int
    n_ff_shexp: int
    expert_weights_scale: float


def _feed_forward(keys: Keys, n_block: int) -> _FeedForward:
    """Feed-forward widths; those of the other kind (dense or MoE) are 0."""
    blocks = range(n_block)
    if keys.arch == "qwen35":
        n_ff = keys.per_layer("feed_forward_length", n_block, blocks)
        return _FeedForward(
            n_ff=n_ff,
            n_expert=0,
            n_expert_used=0,
            n_ff_exp=0,
            n_ff_shexp=0,
            expert_weights_scale=1.0,
        )
    n_ff = keys.per_layer("feed_forward_length", n_block, blocks, 0, low=0)
    n_expert = keys.count("expert_count", high=MAX_EXPERTS)
    n_expert_used = keys.per_layer("expert_used_count", n_block, blocks)
    if n_expert_used > n_expert:
        raise keys.fail("expert_used_count", f"is {n_expert_used} of {n_expert} experts")
    name = "expert_feed_forward_length"
    n_ff_exp = keys.per_layer(name, n_block, blocks, 0, low=0) or n_ff // n_expert_used
    if n_ff_exp == 0:
        raise keys.fail(name, "is missing")
    name = "expert_shared_feed_forward_length"
    n_ff_shexp = keys.count(name, 0, low=0) or n_ff
    if n_ff_shexp == 0:
        raise keys.fail(name, "is missing")
    return _FeedForward(
        n_ff=0,
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        n_ff_exp=n_ff_exp,
        n_ff_shexp=n_ff_shexp,
        expert_weights_scale=keys.number("expert_weights_scale", 0.0) or 1.0,
    )


def _check_consistency(config: ModelConfig, keys: Keys) -> None:
    """What must hold between keys for the widths of the graph to fit together."""
    if config.n_head % config.n_head_kv:
        name = "attention.head_count_kv"
        raise keys.fail(name, f"is {config.n_head_kv}, no divisor of {config.n_head} heads")
    if keys.count("attention.value_length", config.head_dim) != config.head_dim:
        raise keys.fail("attention.value_length", f"is not key_length, {config.head_dim}")
    if config.n_rot % 2:
        raise keys.fail("rope.dimension_count", f"is {config.n_rot}, not even")
    if config.ssm_time_step_rank % config.ssm_group_count:
        groups = config.ssm_group_count
        raise keys.fail("ssm.group_count", f"is {groups}, no divisor of ssm.time_step_rank")
    if keys.count("ssm.inner_size") != config.value_dim:
        raise keys.fail("ssm.inner_size", "is not ssm.time_step_rank times ssm.state_size")
    if not keys.flag("attention.causal", True):
        raise keys.fail("attention.causal", "is false: embedding models are not supported")
    _check_sections(config, keys)


def _check_sections(config: ModelConfig, keys: Keys) -> None:
    """Every rotated pair must follow the text position.

    Pair i follows axis i % 3 while i is below three times that axis's section, else the fourth,
    on which text stands still (interleaved multi-axis rope).
    """
    sections = config.rope_sections
    for pair in range(config.n_rot // 2 if sections else 0):
        i = pair % sum(sections)
        if i >= 3 * sections[i % 3]:
            raise keys.fail(
                "rope.dimension_sections", f"is {list(sections)}: pair {pair} has no text position"
            )
