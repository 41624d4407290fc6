"""A configuration comes from metadata alone, and contradictions are named."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import GGUFError

# State bytes per sequence and f16 KV bytes per token, as published for the released models.
SIZES = {
    "0.8B": (20_201_472, 12_288),
    "2B": (20_201_472, 12_288),
    "4B": (52_690_944, 32_768),
    "9B": (52_690_944, 32_768),
    "27B": (156_893_184, 65_536),
    "35B-A3B": (65_863_680, 20_480),
    "122B-A10B": (156_303_360, 24_576),
    "397B-A17B": (195_379_200, 30_720),
}


def config_with(released, name="35B-A3B", **changes):
    """The configuration of a released model with keys changed (None removes one)."""
    metadata, tensors = released(name)
    arch = metadata["general.architecture"]
    for key, value in changes.items():
        full = key if key.startswith(("general.", "tokenizer.")) else f"{arch}.{key}"
        metadata.pop(full, None)
        if value is not None:
            metadata[full] = value
    return ModelConfig.from_metadata(metadata, tensors, "m.gguf")


def refused(released, *words, name="35B-A3B", **changes):
    with pytest.raises(GGUFError) as caught:
        config_with(released, name, **changes)
    message = str(caught.value)
    assert message.startswith("m.gguf: ") and "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(("name", "sizes"), SIZES.items())
def test_state_and_kv_bytes_of_released_models(released, name, sizes):
    config = config_with(released, name)
    assert (config.state_nbytes, config.kv_nbytes_per_token()) == sizes
    assert config.kv_nbytes_per_token("f32", "f32") == 2 * sizes[1]


def test_numbers_of_the_35b_model(released):
    config = config_with(released)
    assert (config.n_layer, config.n_nextn) == (40, 1)
    assert config.attention_layers == tuple(range(3, 40, 4))
    assert len(config.delta_net_layers) == 30
    assert (config.key_dim, config.value_dim, config.conv_dim) == (2048, 4096, 8192)
    assert config.v_heads_per_k_head == 2 and config.tiled_v_heads
    assert config.attention_scale == 1 / 16
    assert config.is_moe and config.n_ff == 0 and config.expert_weights_scale == 1.0
    assert not config.tied and config.n_vocab == 248320


def test_head_is_tied_where_there_is_no_output_tensor(released):
    assert config_with(released, "4B").tied
    assert not config_with(released, "9B").tied


def test_config_is_frozen(released):
    with pytest.raises(dataclasses.FrozenInstanceError):
        config_with(released).n_layer = 1


def test_defaults_of_optional_keys(released):
    changes = dict.fromkeys(
        ["rope.freq_base", "nextn_predict_layers", "full_attention_interval"], None
    )
    config = config_with(released, block_count=40, **changes)
    assert config.rope_freq_base == 10000.0
    assert config.n_nextn == 0 and config.n_layer == 40
    assert config.attention_layers == tuple(range(3, 40, 4))


def test_recurrent_layers_win_over_the_interval(released):
    layers = np.array([True, False] * 20 + [False])
    config = config_with(released, **{"attention.recurrent_layers": layers})
    assert config.recurrent_layers == tuple(layers[:40].tolist())


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("attention.head_count", [0, 0, 0, 16] * 10 + [16]),
        ("attention.head_count_kv", [0, 0, 0, 2] * 10 + [2]),
        ("expert_used_count", [8] * 41),
        ("expert_feed_forward_length", np.full(41, 512)),
    ],
)
def test_a_scalar_may_be_an_array_over_blocks(released, key, values):
    assert config_with(released, **{key: values}) == config_with(released)
    refused(released, key, "40 entries, expected 41", **{key: list(values[:40])})
    refused(released, key, "differs", **{key: [*values[:39], 4, 4]})


def test_missing_expert_widths_follow_the_dense_width(released):
    names = ["expert_feed_forward_length", "expert_shared_feed_forward_length"]
    config = config_with(released, feed_forward_length=4096, **dict.fromkeys(names))
    assert (config.n_ff_exp, config.n_ff_shexp) == (512, 4096)
    for name in names:
        refused(released, name, "missing", **{name: None})


def test_yarn_is_read(released):
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    scaling = config_with(released, **keys).rope_scaling
    assert scaling.freq_scale == 0.25 and scaling.ext_factor == 1.0
    assert scaling.original_context_length == 262144
    assert (scaling.beta_fast, scaling.beta_slow) == (32.0, 1.0)
    assert scaling.magnitude == pytest.approx(1 + 0.1 * np.log(4))


def test_linear_scaling_and_its_old_key(released):
    new = config_with(released, **{"rope.scaling.factor": 2.0}).rope_scaling
    old = config_with(released, **{"rope.scale_linear": 2.0}).rope_scaling
    assert new == old
    assert (new.type, new.freq_scale, new.magnitude) == ("linear", 0.5, 1.0)


def test_scaling_type_none_leaves_positions_alone(released):
    keys = {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}
    assert config_with(released, **keys).rope_scaling.freq_scale == 1.0


REQUIRED = [
    "block_count",
    "context_length",
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_sections",
    "ssm.conv_kernel",
    "ssm.state_size",
    "ssm.group_count",
    "ssm.time_step_rank",
    "ssm.inner_size",
    "expert_count",
    "expert_used_count",
    "tokenizer.ggml.tokens",
    "general.architecture",
]


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(released, key):
    refused(released, key, "missing", **{key: None})


COUNTS = [key for key in REQUIRED if "." not in key] + ["ssm.conv_kernel", "ssm.state_size"]


@pytest.mark.parametrize("value", [0, -1, 1 << 40, 3.0, True, "8", [8]])
@pytest.mark.parametrize("key", COUNTS)
def test_a_wrong_count_is_named(released, key, value):
    refused(released, key, **{key: value})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"attention.head_count_kv": 3}, "attention.head_count_kv"),
        ({"attention.value_length": 128}, "attention.value_length"),
        ({"rope.dimension_count": 63}, "rope.dimension_count"),
        ({"rope.dimension_count": 512}, "rope.dimension_count"),
        ({"rope.dimension_sections": [11, 11, 10]}, "rope.dimension_sections"),
        ({"rope.dimension_sections": [0, 0, 0, 0]}, "rope.dimension_sections"),
        ({"rope.dimension_sections": [8, 8, 8, 8]}, "rope.dimension_sections"),
        ({"ssm.inner_size": 2048}, "ssm.inner_size"),
        ({"ssm.group_count": 12}, "ssm.group_count"),
        ({"nextn_predict_layers": 41}, "nextn_predict_layers"),
        ({"full_attention_interval": 0}, "full_attention_interval"),
        ({"full_attention_interval": 1}, "full_attention_interval"),
        ({"full_attention_interval": 41}, "full_attention_interval"),
        ({"attention.recurrent_layers": ["a"] * 41}, "attention.recurrent_layers"),
        ({"attention.recurrent_layers": [0, 2] * 20 + [0]}, "attention.recurrent_layers"),
        ({"attention.recurrent_layers": [True, False] * 20}, "attention.recurrent_layers"),
        ({"attention.recurrent_layers": [False, True] * 20 + [True]}, "MTP block"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "attention.layer_norm_rms_epsilon"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "attention.layer_norm_rms_epsilon"),
        ({"attention.causal": False}, "attention.causal"),
        ({"rope.freq_base": float("inf")}, "rope.freq_base"),
        ({"rope.scaling.type": "longrope"}, "rope.scaling.type"),
        ({"rope.scaling.alpha": 1.5}, "rope.scaling.alpha"),
        ({"expert_used_count": 257}, "expert_used_count"),
        ({"tokenizer.ggml.tokens": []}, "tokenizer.ggml.tokens"),
        ({"general.type": "adapter"}, "adapter"),
        ({"general.type": "mmproj"}, "mmproj"),
        ({"general.architecture": "clip"}, "mmproj"),
        ({"general.architecture": "llama"}, "'llama' is not supported"),
        ({"general.architecture": "gemma3"}, "'gemma3' is not supported"),
    ],
)
def test_what_cannot_be_computed_is_refused(released, changes, word):
    refused(released, word, **changes)


def test_a_file_with_the_mtp_block_only_is_no_model(released):
    metadata, _ = released("35B-A3B")
    with pytest.raises(GGUFError, match="only the MTP block"):
        ModelConfig.from_metadata(metadata, {"blk.40.attn_norm.weight"})


def test_a_file_without_tensors_is_no_model(released):
    metadata, _ = released("35B-A3B")
    del metadata["qwen35moe.nextn_predict_layers"]
    with pytest.raises(GGUFError, match=r"blk\.0\.attn_norm\.weight is missing"):
        ModelConfig.from_metadata(metadata, set())


def test_qwen3next_keeps_grouped_heads_and_plain_rope(released):
    metadata, tensors = released("35B-A3B")
    metadata = {k.replace("qwen35moe", "qwen3next"): v for k, v in metadata.items()}
    metadata["general.architecture"] = "qwen3next"
    config = ModelConfig.from_metadata(metadata, tensors)
    assert not config.tiled_v_heads and config.rope_sections == ()


values = st.one_of(
    st.integers(-2, 300),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=8),
    st.lists(st.integers(-1, 64), max_size=45),
    st.lists(st.booleans(), min_size=41, max_size=41),
    st.lists(st.floats(), max_size=4).map(np.array),
)


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_value_of_any_key_is_taken_or_refused(data, released):
    metadata, tensors = released(data.draw(st.sampled_from(["4B", "35B-A3B"])))
    for _ in range(data.draw(st.integers(1, 2))):
        key = data.draw(st.sampled_from(sorted(metadata)))
        metadata[key] = data.draw(values)
    try:
        config = ModelConfig.from_metadata(metadata, tensors, "m.gguf")
        assert config.state_nbytes > 0 and config.kv_nbytes_per_token() > 0
        assert config.rope_scaling.magnitude > 0
    except GGUFError as error:
        assert str(error).startswith("m.gguf: ") and "\n" not in str(error)
