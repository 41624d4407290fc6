"""config.json, generation_config.json and the model card as GGUF metadata, in llama.cpp's order.

``general.*`` follows gguf-py's reading of names and model cards; the rest comes from the text
configuration. Keys that llama.cpp does not write for these architectures are not written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from gguf_hybrid.errors import ConfigError
from gguf_hybrid.weights.metadata import Field, ValueType

from .convert_checkpoint import read_json
from .convert_tensors import Heads, PlannedTensor
from .convert_vocab import string_array

ARCHITECTURES = {
    "Qwen3_5ForConditionalGeneration": "qwen35",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForConditionalGeneration": "qwen35moe",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
}
DEFAULT_SECTIONS = (11, 11, 10)
QUANTIZATION_VERSION = 2
INTERVAL = "full_attention_interval"
YARN_FACTORS = {
    "extrapolation_factor": "yarn_ext_factor",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


@dataclass(frozen=True)
class Hparams:
    """The text configuration; a missing required entry is a ConfigError that names it."""

    path: Path
    values: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        if key not in self.values:
            raise ConfigError(f"{self.path}: {key} is missing")
        return self.values[key]

    def count(self, key: str) -> int:
        """A positive whole number."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{self.path}: {key} is {value!r}, not a positive whole number")
        return value

    def number(self, key: str) -> float:
        """A number."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.path}: {key} is {value!r}, not a number")
        return float(value)

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or ``default`` if it is absent or null."""
        value = self.values.get(key)
        return default if value is None else value


def text_hparams(path: Path, config: Mapping[str, Any]) -> Hparams:
    """config.json with its ``text_config`` (if any) laid over it."""
    return Hparams(path / "config.json", {**config, **config.get("text_config", {})})


def architecture(path: Path, config: Mapping[str, Any]) -> str:
    """``general.architecture`` of the checkpoint. Raises ConfigError if it is not supported."""
    names = config.get("text_config", {}).get("architectures") or config.get("architectures") or []
    name = names[0] if names else None
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ConfigError(
            f"{path / 'config.json'}: architecture {name} is not supported (known: {known})"
        )
    return ARCHITECTURES[name]


def linear_heads(hparams: Hparams) -> Heads:
    """The heads of the linear attention."""
    return Heads(
        n_k=hparams.count("linear_num_key_heads"),
        n_v=hparams.count("linear_num_value_heads"),
        dim_k=hparams.count("linear_key_head_dim"),
        dim_v=hparams.count("linear_value_head_dim"),
    )


def general_fields(
    path: Path, arch: str, tensors: Sequence[PlannedTensor], repo_id: str | None
) -> dict[str, Field]:
    """``general.*`` up to and including the descriptive keys."""
    total, size_label = _size(tensors)
    metadata = gguf.Metadata.load(None, path, None, total)
    generation = path / "generation_config.json"
    if generation.is_file() and metadata.sampling_penalty_repeat is None:
        metadata.sampling_penalty_repeat = read_json(generation).get("repetition_penalty")
    metadata.name = repo_id or metadata.name or path.name
    metadata.size_label = metadata.size_label or size_label
    writer = gguf.GGUFWriter(None, arch)
    writer.add_type("model")
    metadata.set_gguf_meta_model(writer)
    return {key: _field(value) for key, value in writer.kv_data[0].items()}


def _field(value: Any) -> Field:
    if value.type is not gguf.GGUFValueType.ARRAY:
        return Field(value.value, ValueType(value.type))
    assert all(isinstance(item, str) for item in value.value), "only string arrays are descriptive"
    return string_array(list(value.value))


def _size(tensors: Sequence[PlannedTensor]) -> tuple[int, str]:
    """Number of weights and llama.cpp's size label: ``8.9M``, or ``8x8.2M`` with experts."""
    total = sum(prod(tensor.shape) for tensor in tensors)
    experts = [tensor.shape for tensor in tensors if "_exps." in tensor.name]
    n_expert = experts[0][0] if experts else 0
    in_experts = sum(map(prod, experts))
    one_expert = in_experts // n_expert if n_expert else 0
    return total, gguf.size_label(total, total - in_experts, one_expert, n_expert)


def model_fields(
    arch: str, hparams: Hparams, n_mtp: int | None, file_type: int
) -> dict[str, Field]:
    """The architecture's keys, with ``general.file_type`` in the middle as llama.cpp has it.

    ``n_mtp`` is the number of MTP blocks written, None if they were left out on request.
    """
    n_layer = hparams.count("num_hidden_layers")
    n_block = n_layer + (n_mtp or 0)
    own = _attention_fields(hparams, n_block)
    own |= _rope_fields(hparams)
    own["attention.layer_norm_rms_epsilon"] = _f32(hparams.number("rms_norm_eps"))
    own |= _counts(
        hparams, {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
    )
    if hparams.get("head_dim") is not None:
        own["attention.key_length"] = _u32(hparams.count("head_dim"))
        own["attention.value_length"] = _u32(hparams.count("head_dim"))
    tail = _counts(
        hparams,
        {
            "moe_intermediate_size": "expert_feed_forward_length",
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
    )
    if n_mtp:
        tail["nextn_predict_layers"] = _u32(n_mtp)
    tail |= _linear_attention_fields(hparams, n_layer, n_block)
    fields = {f"{arch}.{key}": field for key, field in own.items()}
    fields["general.file_type"] = _u32(file_type)
    fields |= {f"{arch}.{key}": field for key, field in tail.items()}
    fields["general.quantization_version"] = _u32(QUANTIZATION_VERSION)
    return fields


def _u32(value: int) -> Field:
    return Field(value, ValueType.U32)


def _f32(value: float) -> Field:
    return Field(value, ValueType.F32)


def _counts(hparams: Hparams, names: Mapping[str, str]) -> dict[str, Field]:
    """The entries that the configuration has, under their GGUF names."""
    return {name: _u32(hparams.count(key)) for key, name in names.items() if key in hparams.values}


def _attention_fields(hparams: Hparams, n_block: int) -> dict[str, Field]:
    fields = {
        "block_count": _u32(n_block),
        "context_length": _u32(hparams.count("max_position_embeddings")),
        "embedding_length": _u32(hparams.count("hidden_size")),
    }
    fields |= _counts(hparams, {"intermediate_size": "feed_forward_length"})
    fields["attention.head_count"] = _u32(hparams.count("num_attention_heads"))
    fields["attention.head_count_kv"] = _u32(hparams.count("num_key_value_heads"))
    return fields


def _rope(hparams: Hparams) -> Hparams:
    """The rotary parameters; older configurations have some of them at the top level."""
    rope = hparams.get("rope_parameters") or hparams.get("rope_scaling") or {}
    outer = {key: hparams.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    return Hparams(hparams.path, {**outer, **rope})


def _rope_fields(hparams: Hparams) -> dict[str, Field]:
    rope = _rope(hparams)
    fields: dict[str, Field] = {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "yarn"):
        raise ConfigError(f"{hparams.path}: rope_type {kind} is not supported")
    if kind != "default":
        fields["rope.scaling.type"] = Field(kind, ValueType.STRING)
        fields["rope.scaling.factor"] = _f32(rope.number("factor"))
    if kind == "yarn":
        original = rope.count("original_max_position_embeddings")
        fields["rope.scaling.original_context_length"] = _u32(original)
        for key, name in YARN_FACTORS.items():
            if rope.get(key) is not None:
                fields[f"rope.scaling.{name}"] = _f32(rope.number(key))
    if rope.get("mrope_section") is not None:
        fields["rope.dimension_sections"] = _sections(rope["mrope_section"])
    if rope.get("rope_theta") is not None:
        fields["rope.freq_base"] = _f32(rope.number("rope_theta"))
    return fields


def _sections(sections: Sequence[int]) -> Field:
    padded = ([*sections] + [0, 0, 0, 0])[:4]
    return Field(np.array(padded, np.int32), ValueType.ARRAY, ValueType.I32)


def _linear_attention_fields(hparams: Hparams, n_layer: int, n_block: int) -> dict[str, Field]:
    n_v = hparams.count("linear_num_value_heads")
    fields = {
        "ssm.conv_kernel": _u32(hparams.count("linear_conv_kernel_dim")),
        "ssm.state_size": _u32(hparams.count("linear_key_head_dim")),
        "ssm.group_count": _u32(hparams.count("linear_num_key_heads")),
        "ssm.time_step_rank": _u32(n_v),
        "ssm.inner_size": _u32(hparams.count("linear_value_head_dim") * n_v),
    }
    interval = hparams.count(INTERVAL) if INTERVAL in hparams.values else 4
    recurrent = _recurrent_layers(hparams, n_layer, interval)
    flags = np.array(recurrent + [False] * (n_block - n_layer), np.bool_)
    fields["attention.recurrent_layers"] = Field(flags, ValueType.ARRAY, ValueType.BOOL)
    fields["full_attention_interval"] = _u32(interval)
    rope = _rope(hparams)
    head_dim = hparams.get("head_dim") or hparams["hidden_size"] // hparams["num_attention_heads"]
    fraction = rope.get("partial_rotary_factor", 0.25)
    fields["rope.dimension_count"] = _u32(int(head_dim * fraction))
    if rope.get("mrope_section") is None:
        fields["rope.dimension_sections"] = _sections(DEFAULT_SECTIONS)
    return fields


def _recurrent_layers(hparams: Hparams, n_layer: int, interval: int) -> list[bool]:
    kinds = hparams.get("layer_types")
    if kinds is None:
        return [(i + 1) % interval != 0 for i in range(n_layer)]
    if len(kinds) != n_layer:
        raise ConfigError(
            f"{hparams.path}: layer_types has {len(kinds)} entries, num_hidden_layers is {n_layer}"
        )
    return [kind == "linear_attention" for kind in kinds]
