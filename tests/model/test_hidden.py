"""Hidden states for embeddings: the same from every backend, for every company, as llama.cpp's."""

import json

import numpy as np
import pytest

from gguf_hybrid.memory.store import Floats
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.step import Step
from gguf_hybrid.text.tokenizer import Tokenizer
from gguf_hybrid.weights.reader import open_gguf

from .models import BACKENDS, DATA, DENSE, MOE, Sequence, model_of, path_of, sequences, spec_for

PROMPTS = [np.random.default_rng(n).integers(0, 4000, n).tolist() for n in (130, 1, 64, 5, 1, 200)]


def hidden(model: Qwen35, store: object, work: list[tuple[Sequence, list[int]]]) -> list[Floats]:
    """One step, committed; float32 [n, n_embd] for each row."""
    rows = [seq.row(tokens) for seq, tokens in work]
    step = Step(tuple(rows))
    values = model.hidden(step, store)  # type: ignore[arg-type]
    for (seq, _), row in zip(work, rows, strict=True):
        seq.commit(row)
    return np.split(values, step.offsets[1:-1])


def alone(model: Qwen35, tokens: list[int]) -> Floats:
    (values,) = hidden(model, model.new_store(spec_for(1)), [(sequences(1)[0], tokens)])
    return values


@pytest.mark.parametrize("name", [DENSE, MOE])
@pytest.mark.parametrize("backend", list(BACKENDS))
def test_hidden_states_do_not_see_their_neighbours(name: str, backend: str) -> None:
    model = model_of(name, backend)
    work = list(zip(sequences(len(PROMPTS)), PROMPTS, strict=True))
    for got, tokens in zip(
        hidden(model, model.new_store(spec_for(len(PROMPTS))), work), PROMPTS, strict=True
    ):
        assert np.array_equal(got, alone(model, tokens))


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_prompt_in_pieces_has_the_hidden_states_of_the_whole(backend: str) -> None:
    model, tokens = model_of(DENSE, backend), PROMPTS[-1]
    store, (seq,) = model.new_store(spec_for(1)), sequences(1)
    pieces = [hidden(model, store, [(seq, part)])[0] for part in (tokens[:64], tokens[64:])]
    assert np.array_equal(np.concatenate(pieces), alone(model, tokens))


@pytest.mark.parametrize("name", [DENSE, MOE])
def test_backends_agree(name: str) -> None:
    for tokens in PROMPTS:
        mlx = alone(model_of(name, "mlx"), tokens)
        cpu = alone(model_of(name, "cpu-exact"), tokens)
        assert np.abs(mlx - cpu).max() < 1e-3 * np.abs(mlx).max()


@pytest.mark.parametrize("backend", list(BACKENDS))
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_pooled_states_are_those_of_llama_cpp(backend: str, pooling: str) -> None:
    """Recorded with ``llama-server --embeddings``, unit length."""
    record = json.loads((DATA / "numeric/embeddings.json").read_text())
    name = record["model"]
    tokenizer = Tokenizer.from_metadata(open_gguf(path_of(name)).metadata)
    states = alone(model_of(name, backend), tokenizer.encode(record["text"]))
    vector = states.mean(axis=0) if pooling == "mean" else states[-1]
    cosine = vector @ np.array(record[pooling]) / np.linalg.norm(vector)
    assert cosine > 0.9999
