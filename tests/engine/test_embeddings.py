"""Embedding requests: what they give out, what they leave, and that nobody else notices them."""

from typing import Any

import numpy as np
import pytest
from support.engine_harness import Harness, alone, prompt, request, same_rows
from support.fake_model import N_EMBD, FakeModel

from gguf_hybrid.engine.pooling import Pooling
from gguf_hybrid.engine.request import Embedded, Failed, Request, Started
from gguf_hybrid.memory.store import Floats
from gguf_hybrid.step import Row

LENGTHS = (1, 2, 63, 64, 65, 66, 200, 400)
NAN = 96


def embedding(n: int, pooling: Pooling = Pooling.NONE, seed: int = 0, **fields: Any) -> Request:
    tokens = tuple(t for t in prompt(n + 20, seed) if t != NAN)[:n]
    return request(tokens, cache_prompt=False, pooling=pooling, **fields)


def vectors(h: Harness, each: Request) -> Floats:
    (end,) = h.run(each)
    assert isinstance(end, Embedded) and end.n_tokens == len(each.prompt)
    return end.vectors


def test_events_are_the_start_and_the_vectors() -> None:
    h = Harness()
    each = embedding(100)
    assert vectors(h, each).shape == (100, N_EMBD)
    assert [type(e) for e in h.events] == [Started, Embedded]


@pytest.mark.parametrize("n", LENGTHS)
def test_pooling_is_of_the_tokens_vectors(n: int) -> None:
    every = vectors(Harness(), embedding(n))
    assert np.array_equal(vectors(Harness(), embedding(n, Pooling.CLS)), every[:1])
    assert np.array_equal(vectors(Harness(), embedding(n, Pooling.LAST)), every[-1:])
    mean = vectors(Harness(), embedding(n, Pooling.MEAN))
    assert np.allclose(mean, every.mean(axis=0, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("seconds_per_token", [1e-6, 1e-3])
def test_vectors_do_not_depend_on_the_others(pooling: Pooling, seconds_per_token: float) -> None:
    """Slow tokens make small passes, so prompts come in more pieces beside a stream."""
    expected = [vectors(Harness(), embedding(n, pooling, n)) for n in LENGTHS]
    h = Harness(n_slots=4, seconds_per_token=seconds_per_token)
    stream = request(prompt(70, 9), 300)
    embeddings = [embedding(n, pooling, n) for n in LENGTHS]
    _, *ends = h.run(stream, *embeddings)
    for end, vector in zip(ends, expected, strict=True):
        assert isinstance(end, Embedded) and np.array_equal(end.vectors, vector)


def test_completions_do_not_notice_embeddings() -> None:
    h = Harness(n_slots=4, cache_ram_nbytes=1 << 20)
    completions = [request(prompt(90 * i + 5, i), 20) for i in range(4)]
    mixed = [each for i, one in enumerate(completions) for each in (one, embedding(70 * i + 9))]
    h.run(*mixed)
    for each in completions:
        assert same_rows(each.sampler.rows, alone(each.prompt, 20))


def test_nothing_is_reused_and_nothing_left() -> None:
    h = Harness(n_slots=1, cache_ram_nbytes=1 << 20)
    tokens = tuple(t for t in prompt(150) if t != NAN)
    for _ in range(2):
        vectors(h, request(tokens, cache_prompt=False, pooling=Pooling.LAST))
        assert h.engine.slots[0].tokens == [] and h.engine.cache.stats.n_entries == 0
    assert h.engine.counters.prompt_tokens == 2 * len(tokens)
    each = request((*tokens, 5), 2)
    h.run(each)
    assert h.engine.counters.prompt_tokens_cached == 0


def test_a_conversation_outlives_an_embedding_in_its_slot() -> None:
    h = Harness(n_slots=1, cache_ram_nbytes=1 << 20)
    h.run(request(prompt(150), 2))
    vectors(h, embedding(90, seed=1))
    h.run(request(prompt(150), 2))
    assert h.engine.counters.prompt_tokens_cached == 149


@pytest.mark.parametrize("pooling", [Pooling.NONE, Pooling.MEAN, Pooling.CLS])
def test_a_prompt_beyond_the_physical_batch_is_refused(pooling: Pooling) -> None:
    h = Harness(n_ubatch=128)
    (end,) = h.run(embedding(129, pooling))
    assert isinstance(end, Failed) and end.error.status == 500
    assert str(end.error) == (
        "input (129 tokens) is too large to process. increase the physical batch size"
        " (current batch size: 128)"
    )
    assert len(vectors(h, embedding(128, pooling)))


def test_the_last_vector_of_a_prompt_of_any_length() -> None:
    long = embedding(700, Pooling.LAST)
    assert np.array_equal(vectors(Harness(n_ubatch=128), long), vectors(Harness(), long))


def test_a_cancelled_embedding_leaves_an_empty_slot() -> None:
    h = Harness(n_slots=1, n_ubatch=64)
    each = embedding(300, Pooling.LAST)
    h.engine.submit([each])
    h.step()
    h.engine.cancel(each.id)
    assert h.engine.slots[0].is_idle and h.engine.slots[0].tokens == []
    assert not h.engine.is_busy


def test_vectors_that_are_not_finite_fail_their_own_request() -> None:
    def verdict(row: Row) -> str | None:
        return "nan" if NAN in row.tokens else None

    h = Harness(model=FakeModel(verdict))
    good, stream = embedding(80, seed=3), request((1, 2, 3), 2)
    bad = request((5, NAN, 7), cache_prompt=False, pooling=Pooling.MEAN)
    ends = h.run(good, bad, stream)
    assert [type(e).__name__ for e in ends] == ["Embedded", "Failed", "Done"]


def test_a_failing_row_fails_its_own_request() -> None:
    def fail(row: Row) -> None:
        if NAN in row.tokens:
            raise RuntimeError("poison")

    h = Harness(model=FakeModel(fail))
    good = [embedding(80, seed=i) for i in range(2)]
    bad = request((5, NAN, 7), cache_prompt=False, pooling=Pooling.MEAN)
    first, failed, second = h.run(good[0], bad, good[1])
    assert isinstance(failed, Failed) and failed.error.status == 500
    for each, end in zip(good, (first, second), strict=True):
        assert isinstance(end, Embedded)
        assert np.array_equal(end.vectors, vectors(Harness(), each))
