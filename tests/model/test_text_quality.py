"""Greedy texts and perplexity against llama.cpp's recordings, in the default arithmetic."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from gguf_hybrid.tools.perplexity import running_perplexity

from gguf_hybrid.text.tokenizer import Tokenizer
from gguf_hybrid.weights.reader import open_gguf

from .models import DATA, DEFAULT, FILES, advance, log_softmax, model_of, path_of, sequences
from .models import spec_for as spec

PERPLEXITY = json.loads((DATA / "numeric" / "perplexity.json").read_text())["files"]
N_CHUNKS = 8
GREEDY = [
    "short", "one_token", "chat_nothink", "chat_think", "tools", "tools_result", "python_code",
    "fim", "len64", "len128", "long700", "long1500",
]  # fmt: skip


@cache
def golden(name: str) -> dict[str, Any]:
    loaded = json.loads((DATA / "numeric" / f"{name}.json").read_text())
    return {p["name"]: p for p in loaded["prompts"]}


def greedy(name: str, prompt: list[int], n: int) -> list[int]:
    model = model_of(name, DEFAULT)
    store = model.new_store(spec(1, 8))
    (seq,) = sequences(1, 8)
    (logits,) = advance(model, store, [(seq, prompt)])
    out = [int(logits[0].argmax())]
    while len(out) < n:
        (logits,) = advance(model, store, [(seq, out[-1:])])
        out.append(int(logits[0].argmax()))
    return out


@pytest.mark.parametrize("prompt", GREEDY)
@pytest.mark.parametrize("name", FILES)
def test_greedy_ids_up_to_near_ties(name: str, prompt: str) -> None:
    """Equal until a step whose two best recorded log-probabilities are close."""
    record = golden(name)[prompt]
    near = 0.2 if name.endswith("BF16") else 0.6
    generated = record["generated"]
    gap = {s["i"]: s["top"][0][1] - s["top"][1][1] for s in record["steps"]}
    mine = greedy(name, record["prompt_tokens"], len(generated))
    for i, (got, expected) in enumerate(zip(mine, generated, strict=True)):
        if got != expected:
            assert gap.get(i, 0.0) < near, f"step {i}: {got} instead of {expected}"
            break


@pytest.mark.parametrize("prompt", GREEDY)
@pytest.mark.parametrize("name", FILES)
def test_first_step_within_any_arithmetic(name: str, prompt: str) -> None:
    """The recorded distribution of llama.cpp's own arithmetic (8-bit activations, f16 KV)."""
    recorded = np.load(DATA / "numeric" / f"{name}.first_step.npz")[prompt]
    expected = log_softmax(recorded[None])[0]
    model = model_of(name, DEFAULT)
    tokens = golden(name)[prompt]["prompt_tokens"]
    (logits,) = advance(model, model.new_store(spec(1, 8)), [(sequences(1, 8)[0], tokens)])
    got = log_softmax(logits)[0]
    kl = float((np.exp(expected) * (expected - got)).sum())
    assert kl < (1e-2 if "moe" not in name else 5e-2)


@cache
def text_tokens() -> list[int]:
    tokenizer = Tokenizer.from_metadata(open_gguf(path_of(FILES[0])).metadata)
    text = (DATA / "numeric" / "text.txt").read_text()
    return tokenizer.encode(text, parse_special=False)


def close_to(recorded: float, name: str) -> Any:
    rel = 2e-3 if name.endswith(("BF16", "Q8_0")) else 5e-3
    return pytest.approx(recorded, rel=rel)


@pytest.mark.parametrize("name", FILES)
def test_perplexity_of_the_first_chunks(name: str) -> None:
    *_, last = running_perplexity(model_of(name, DEFAULT), text_tokens()[: N_CHUNKS * 512])
    assert last == close_to(PERPLEXITY[name]["running"][N_CHUNKS - 1], name)


@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_perplexity(name: str) -> None:
    *_, last = running_perplexity(model_of(name, DEFAULT), text_tokens())
    assert last == close_to(PERPLEXITY[name]["ppl"], name)
    exact = PERPLEXITY[name]["ppl_weights_expanded_to_f32"]
    assert last == pytest.approx(exact, rel=3e-3)
