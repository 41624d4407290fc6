"""Masks in a sampler: ends, lazy grammars, threads, and failures that stay with one request."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from llguidance import LLParserLimits

from gguf_hybrid.errors import RequestError, StepError
from gguf_hybrid.sampling import constraint as constraints
from gguf_hybrid.sampling.chain import Sampler
from gguf_hybrid.sampling.constraint import Constraint, Trigger
from gguf_hybrid.sampling.grammar import Grammar
from gguf_hybrid.sampling.mask_cost import measure
from gguf_hybrid.sampling.params import SamplingParams


def allowed(constraint):
    return constraint.mask().nonzero()[0].tolist()


def test_only_an_end_may_follow_a_complete_grammar(words):
    constraint = Grammar.from_gbnf('root ::= "ab"').start(words.grammar)
    assert ord("a") in allowed(constraint) and not constraint.is_complete
    constraint.accept(words.encode("ab")[0])
    assert constraint.is_complete and constraint.is_exhausted
    assert allowed(constraint) == [words.eog]
    constraint.accept(words.eog)
    assert allowed(constraint) == [words.eog]


def test_every_spelling_of_forced_text_is_allowed(words):
    mask = Grammar.from_gbnf('root ::= "true"').start(words.grammar).mask()
    assert {words.decode([i]) for i in mask.nonzero()[0]} == {b"t", b"true"}


def test_a_token_that_does_not_fit_is_an_error_of_its_request(words):
    constraint = Grammar.from_gbnf('root ::= "ab"').start(words.grammar)
    with pytest.raises(StepError, match="does not fit the grammar"):
        constraint.accept(ord("x"))


def test_an_early_end_is_an_error(words):
    with pytest.raises(StepError):
        Grammar.from_gbnf('root ::= "ab"').start(words.grammar).accept(words.eog)


def test_a_bad_lark_grammar_is_refused(words):
    with pytest.raises(RequestError, match="failed to parse grammar"):
        Constraint("start: nothing", words.grammar)


def test_a_grammar_too_complex_to_follow_ends_its_request(words, monkeypatch):
    monkeypatch.setattr(constraints, "LIMITS", LLParserLimits(max_items_in_row=100))
    constraint = Grammar.from_gbnf("root ::= root root root | [a]{0,3}").start(words.grammar)
    with pytest.raises(StepError, match="^grammar failed|does not fit"):
        for _ in range(300):
            constraint.mask()
            constraint.accept(ord("a"))


def test_rollback(words):
    constraint = Grammar.from_gbnf('root ::= "a" "b" "c"').start(words.grammar)
    for text in "ab":
        constraint.accept(ord(text))
    assert allowed(constraint) == [ord("c")]
    constraint.rollback(1)
    assert ord("b") in allowed(constraint)


def test_masks_prepared_on_other_threads_are_the_same(words):
    grammar = Grammar.from_schema({"type": "array", "items": {"type": "integer"}})
    text = words.encode('[1, 12, -1]')  # fmt: skip
    alone, ahead = grammar.start(words.grammar), grammar.start(words.grammar)
    sampler = Sampler(SamplingParams(), words.sampling, ahead)
    with ThreadPoolExecutor(2) as pool:
        for token in text:
            pool.submit(sampler.prepare_mask).result()
            np.testing.assert_array_equal(ahead.mask(), alone.mask())
            ahead.accept(token)
            alone.accept(token)


def test_lazy_grammar_wakes_at_a_word_over_several_tokens(words):
    grammar = Grammar.from_gbnf('root ::= "42" "!"', triggers=[Trigger(text="42")])
    constraint = grammar.start(words.grammar)
    for char in "was 4":
        constraint.accept(ord(char))
        assert constraint.mask() is None
    constraint.accept(ord("2"))
    assert constraint.is_active and allowed(constraint) == [ord("!")]


def test_lazy_grammar_wakes_at_a_token(words):
    grammar = Grammar.from_gbnf(
        f'root ::= <[{words.control}]> "x"', triggers=[Trigger(token=words.control)]
    )
    constraint = grammar.start(words.grammar)
    constraint.accept(ord("x"))
    assert constraint.mask() is None and constraint.is_complete
    constraint.accept(words.control)
    assert allowed(constraint) == [ord("x")]


def test_text_behind_the_trigger_in_the_same_token_must_fit(words):
    token = words.encode('ab"')[0]
    fits = Grammar.from_gbnf('root ::= "a" "b" [\\"] "x"', triggers=[Trigger(text="a")])
    constraint = fits.start(words.grammar)
    constraint.accept(token)
    assert allowed(constraint) == [ord("x")]
    other = Grammar.from_gbnf('root ::= "a" "x"', triggers=[Trigger(text="a")])
    with pytest.raises(StepError, match="woke the grammar"):
        other.start(words.grammar).accept(token)


def test_greedy_sampling_under_a_grammar(words):
    """The best allowed token wins, however likely the others are."""
    logits = np.zeros(len(words.token_bytes), dtype=np.float32)
    logits[ord("z")], logits[ord("3")] = 50.0, 1.0
    constraint = Grammar.from_gbnf("root ::= [0-9]{2}").start(words.grammar)
    sampler = Sampler(SamplingParams(temperature=0.0), words.sampling, constraint)
    for expected in (ord("3"), ord("3"), words.eog):
        sampled = sampler.sample(logits)
        assert sampled.id == expected
        sampler.accept(sampled.id)


def test_cost_covers_every_token(words):
    cost = measure(Grammar.from_gbnf("root ::= [0-9]{8}"), words.grammar, n_tokens=5)
    assert len(cost.mask_ms) <= 5 and min(cost.mask_ms) > 0
    assert "masks: mean" in str(cost)
