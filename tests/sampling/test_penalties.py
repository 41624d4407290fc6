"""Logit bias, repetition penalties and DRY against their definitions over plain lists."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_hybrid.sampling.candidates import FLOAT32_MAX, Candidates
from gguf_hybrid.sampling.dry import Dry, longest_repeats
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.sampling.penalties import LogitBias, Penalties
from gguf_hybrid.sampling.vocab import SamplingVocab


def of_logits(logits):
    logits = np.asarray(logits, dtype=np.float32)
    return Candidates(np.arange(len(logits)), logits, is_full=True)


def vocab_of(*pieces):
    def tokenize(text):
        return [pieces.index(bytes([byte])) for byte in text.encode()]

    return SamplingVocab(pieces, eog_ids=(), tokenize=tokenize)


LETTERS = vocab_of(b"a", b"b", b"c", b"d", b"e")


@given(
    st.lists(st.integers(0, 7), max_size=30),
    st.integers(1, 12),
    st.floats(0.5, 2),
    st.floats(-2, 2),
    st.floats(-2, 2),
)
def test_penalties_follow_the_formula_over_the_window(said, last_n, repeat, frequency, presence):
    params = SamplingParams(
        repeat_last_n=last_n,
        repeat_penalty=repeat,
        frequency_penalty=frequency,
        presence_penalty=presence,
    )
    penalties = Penalties(params)
    for token in said:
        penalties.accept(token)
    logits = [1.5, -2.0, 0.0, 3.0, -np.inf, 0.25, -0.5, 2.0]
    expected = []
    for token, x in enumerate(logits):
        count = said[-last_n:].count(token)
        if count:
            x = x * repeat if x <= 0 else x / repeat
            x -= count * frequency + presence
        expected.append(x)
    np.testing.assert_allclose(
        penalties.apply(of_logits(logits)).logits, expected, rtol=1e-5, atol=1e-6
    )


def test_penalties_reach_candidates_that_are_no_longer_in_order():
    penalties = Penalties(SamplingParams(presence_penalty=1.0))
    for token in (5, 7, 9):
        penalties.accept(token)
    some = Candidates(np.array([9, 2, 5]), np.float32([3, 2, 1]), is_sorted=True)
    assert penalties.apply(some).logits.tolist() == [2.0, 2.0, 0.0]


@pytest.mark.parametrize(
    "changes", [{}, {"repeat_penalty": 1.1, "repeat_last_n": 0}, {"repeat_penalty": 1.0}]
)
def test_neutral_penalties_are_off(changes):
    assert not Penalties.is_active(SamplingParams(**changes))


def test_bias_adds_up_and_bans():
    bias = LogitBias([(0, 1.5), (0, 0.5), (2, -math.inf), (3, 1e300)])
    assert bias.apply(of_logits([1, 1, 1, 1])).logits.tolist() == [3.0, 1.0, -np.inf, FLOAT32_MAX]


def test_bias_leaves_the_given_logits_alone():
    logits = np.zeros(3, dtype=np.float32)
    LogitBias([(1, 5.0)]).apply(of_logits(logits))
    assert not logits.any()


def dry_logits(said, *, vocab=LETTERS, **changes):
    params = SamplingParams(dry_base=1.1, **{"dry_multiplier": 1.0, **changes}).resolved()
    dry = Dry(params, vocab)
    for token in said:
        dry.accept(token)
    return dry.apply(of_logits(np.zeros(vocab.n_vocab))).logits.tolist()


def test_dry_waits_for_the_allowed_length():
    assert dry_logits([0, 1]) == [0] * 5
    assert dry_logits([0, 1, 2, 3, 4, 0, 1], dry_allowed_length=4) == [0] * 5


def test_dry_penalises_what_would_go_on_repeating():
    assert dry_logits([0, 1, 2, 0, 1]) == [0, 0, -1, 0, 0]
    assert dry_logits([0, 1, 2, 0, 1], dry_multiplier=2.0) == [0, 0, -2, 0, 0]
    longer = dry_logits([4, 0, 1, 2, 4, 0, 1])
    assert longer == pytest.approx([0, 0, -1.1, 0, 0])


def test_dry_stops_at_a_breaker():
    said = [0, 1, 3, 4, 0, 1]
    assert dry_logits(said) == [0, 0, 0, -1, 0]
    assert dry_logits(said, dry_sequence_breakers=("a",)) == [0] * 5


def test_dry_never_penalises_a_breaker():
    assert dry_logits([0, 1, 2, 0, 1], dry_sequence_breakers=("c",)) == [0] * 5


def test_dry_forgets_what_left_its_window():
    said = [0, 1, 2, 3, 0, 1]
    assert dry_logits(said, dry_penalty_last_n=6) != [0] * 5
    assert dry_logits(said, dry_penalty_last_n=5) == [0] * 5


def test_dry_penalty_cannot_overflow():
    loop = [0, 1] * 300
    logits = dry_logits(loop, dry_penalty_last_n=600, dry_multiplier=1e30)
    assert logits[0] == -FLOAT32_MAX


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 4))
def test_repeats_are_the_longest_common_suffixes(said, allowed):
    expected = {}
    for end in range(len(said) - 1):
        length = 0
        while length <= end and said[end - length] == said[len(said) - 1 - length]:
            length += 1
        if length >= allowed:
            token = said[end + 1]
            expected[token] = max(expected.get(token, 0), length)
    if len(said) <= allowed:
        expected = {}
    assert longest_repeats(said[::-1], allowed, {}) == expected


def test_breakers_at_token_level():
    vocab = vocab_of(b"\n", b"ab\ncd", b"x", b"E", b"N", b"D", b"say E", b"D!", b"END")
    assert vocab.breaker_heads("\n") == {0: {()}, 1: {()}}
    # "END" is a token, or begins at the end of one and goes on in the next.
    assert vocab.breaker_heads("END") == {8: {()}, 3: {(4, 5)}, 6: {(4, 5)}}
    assert vocab.breaker_heads("") == {}


def test_breaker_over_several_tokens_limits_the_repeat():
    vocab = vocab_of(b"a", b"b", b"c", b"E", b"N")
    said = [0, 1, 2, 3, 4, 0, 1]
    assert dry_logits(said, vocab=vocab, dry_sequence_breakers=("EN",)) == [0, 0, -1, 0, 0]
    said = [0, 1, 2, 0, 3, 4, 1]
    assert dry_logits(said, vocab=vocab, dry_sequence_breakers=("EN",)) == [0] * 5
