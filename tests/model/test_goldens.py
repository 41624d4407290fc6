"""The forward pass against recordings of llama.cpp (float32) and transformers.

``*.exact_weights_first_step``: the file's own weights computed in float32 with an f32 KV cache; the
limit is 1e-3 in every log-probability. The plain MLX backend is slow, so its long prompts are
``full`` only.
"""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from .models import DATA, EXACT, FILES, advance, log_softmax, model_of, sequences, spec_for

LIMIT = 1e-3
NAMES = [
    "short", "one_token", "chat_nothink", "chat_think", "tools", "tools_result", "python_code",
    "fim", "unicode", "len64", "len128", "long700", "long1500",
]  # fmt: skip
SLOW = {"tools", "tools_result", "long700", "long1500"}


@cache
def golden(name: str) -> dict[str, Any]:
    loaded = json.loads((DATA / "numeric" / f"{name}.json").read_text())
    return {p["name"]: p for p in loaded["prompts"]}


def first_step(name: str, backend: str, prompt: list[int], kv_type: str) -> Any:
    model = model_of(name, backend)
    store = model.new_store(spec_for(1, 8, kv_type))
    (logits,) = advance(model, store, [(sequences(1, 8)[0], prompt)])
    return log_softmax(logits)[0]


def cases() -> list[Any]:
    return [
        pytest.param(b, n, marks=[pytest.mark.full] if b == "mlx" and n in SLOW else [])
        for b in EXACT
        for n in NAMES
    ]


@pytest.mark.parametrize(("backend", "prompt"), cases())
@pytest.mark.parametrize("name", FILES)
def test_first_step_equals_exact_weights(name: str, backend: str, prompt: str) -> None:
    recorded = np.load(DATA / "numeric" / f"{name}.exact_weights_first_step.npz")[prompt]
    expected = log_softmax(recorded[None])[0]
    got = first_step(name, backend, golden(name)[prompt]["prompt_tokens"], "f32")
    assert np.abs(got - expected).max() < LIMIT
    assert float((np.exp(expected) * (expected - got)).sum()) < 1e-6


@pytest.mark.parametrize(("backend", "prompt"), cases())
@pytest.mark.parametrize("model", ["qwen35-tiny", "qwen35moe-tiny"])
def test_bf16_equals_transformers(model: str, backend: str, prompt: str) -> None:
    recorded = np.load(DATA / "numeric" / f"{model}.hf_fp32_last_logits.npz")[prompt]
    name = f"{model}-BF16"
    got = first_step(name, backend, golden(name)[prompt]["prompt_tokens"], "f32")
    assert np.abs(got - log_softmax(recorded[None])[0]).max() < LIMIT
