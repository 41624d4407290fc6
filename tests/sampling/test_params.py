"""Settings: defaults as llama-server echoes them, bounds, names, metadata overlay."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gguf_hybrid.errors import RequestError
from gguf_hybrid.sampling.names import (
    DEFAULT_SAMPLERS,
    samplers_from_letters,
    samplers_from_names,
)
from gguf_hybrid.sampling.params import NUMBER_FIELDS, RANDOM_SEED, SamplingParams

FIELDS = {field.name: field for field in NUMBER_FIELDS}

# generation_settings as recorded from llama.cpp b11434 for a request that sets nothing.
RECORDED = {
    "seed": 4294967295,
    "temperature": 0.800000011920929,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_k": 40,
    "top_p": 0.949999988079071,
    "min_p": 0.05000000074505806,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.10000000149011612,
    "typical_p": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.10000000149011612,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.8999999761581421,
    "ignore_eos": False,
    "logit_bias": [],
    "n_probs": 0,
    "min_keep": 0,
    "grammar": "",
    "grammar_lazy": False,
    "samplers": list(DEFAULT_SAMPLERS),
    "post_sampling_probs": False,
    "backend_sampling": False,
}


def test_defaults_are_the_recorded_ones():
    assert SamplingParams().resolved().settings() == RECORDED


def test_resolving_twice_changes_nothing():
    once = SamplingParams(temperature=0.7, top_p=1.3, seed=-1, dry_base=0.5).resolved()
    assert once.resolved() == once


@pytest.mark.parametrize(
    ("field", "given", "acts"),
    [
        ("temperature", -1.0, 0.0),
        ("top_k", -7, 0),
        ("top_p", 1.5, 1.0),
        ("min_p", -0.5, 0.0),
        ("xtc_probability", 2.0, 1.0),
        ("xtc_threshold", -1.0, 0.0),
        ("mirostat", 5, 2),
        ("adaptive_target", 7.0, 1.0),
        ("dry_base", 0.5, 1.75),
        ("seed", -1, RANDOM_SEED),
        ("seed", 2**32 + 5, 5),
        ("temperature", 1e300, float(np.finfo(np.float32).max)),
    ],
)
def test_soft_bounds_clamp(field, given, acts):
    assert getattr(replace(SamplingParams(), **{field: given}).resolved(), field) == acts


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "repeat_last_n",
            -1,
            "Field 'repeat_last_n': Value must be between 0 <= value <= 2147483647, but got -1",
        ),
        (
            "adaptive_decay",
            1.5,
            "Field 'adaptive_decay': "
            "Value must be between 0.000000 <= value <= 0.990000, but got 1.500000",
        ),
        ("top_p", math.nan, "Field 'top_p': Value must be finite, but got nan"),
        ("temperature", math.inf, "Field 'temperature': Value must be finite, but got inf"),
    ],
)
def test_hard_bounds_refuse(field, value, message):
    with pytest.raises(RequestError) as caught:
        replace(SamplingParams(), **{field: value}).resolved()
    assert (str(caught.value), caught.value.status) == (message, 400)


def test_the_alias_a_client_used_is_named():
    with pytest.raises(RequestError, match="Field 'logprobs'"):
        FIELDS["n_probs"].checked(math.inf, "logprobs")


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e-39])
def test_repeat_penalty_must_have_a_reciprocal(value):
    with pytest.raises(RequestError, match="^Failed to initialize samplers: penalty_repeat must"):
        SamplingParams(repeat_penalty=value).resolved()


@pytest.mark.parametrize("field", ["frequency_penalty", "presence_penalty"])
def test_penalties_must_be_finite(field):
    with pytest.raises(RequestError, match="^Failed to initialize samplers: penalty_"):
        replace(SamplingParams(), **{field: math.inf}).resolved()


def test_every_table_row_is_a_setting():
    settings = SamplingParams()
    for name, field in FIELDS.items():
        assert isinstance(getattr(settings, name), field.kind)


def test_ignore_eos_shows_as_null_biases():
    params = SamplingParams(ignore_eos=True, logit_bias=((7, -1.5),))
    assert params.settings(eog_ids={12, 3})["logit_bias"] == [
        {"bias": -1.5, "token": 7},
        {"bias": None, "token": 3},
        {"bias": None, "token": 12},
    ]


def test_sampler_spellings(caplog):
    names = ["Top-K", "topk", "nucleus", "temp", "typ", "typ-p", "adaptivep", "nonsense"]
    expected = ("top_k", "top_k", "top_p", "temperature", "typ_p", "typ_p", "adaptive_p")
    assert samplers_from_names(names) == expected
    assert "nonsense" in caplog.text


def test_sampler_letters(caplog):
    assert samplers_from_letters("edskypmxt") == DEFAULT_SAMPLERS
    assert samplers_from_letters("i?a") == ("infill", "adaptive_p")
    assert "'?'" in caplog.text


def test_metadata_overlay():
    metadata = {
        "general.sampling.top_k": 20,
        "general.sampling.temp": 0.6,
        "general.sampling.penalty_last_n": 32,
        "general.sampling.sequence": "top_k;temp",
        "general.sampling.unknown": 1,
        "general.name": "x",
    }
    params = SamplingParams(min_p=0.2).with_gguf_metadata(metadata)
    expected = SamplingParams(
        min_p=0.2, top_k=20, temperature=0.6, repeat_last_n=32, samplers=("top_k", "temperature")
    )
    assert params == expected
