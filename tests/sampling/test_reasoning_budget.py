"""The budget of reasoning tokens: when it counts, when it forces, when it arms again."""

import numpy as np

from gguf_hybrid.sampling.chain import Sampler
from gguf_hybrid.sampling.grammar import Grammar
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.sampling.reasoning_budget import ReasoningBudget, ReasoningTags


def tags_of(words, message=""):
    end = tuple(words.encode("</think>"))
    call = tuple(words.encode("<tool_call>"))
    forced = (*words.encode(message), *words.encode("\n"), *end)
    return ReasoningTags(start=tuple(words.encode("<think>")), ends=(end, call), forced=forced)


def budget_of(words, n, message=""):
    return ReasoningBudget(tags_of(words, message), n, words.token_bytes)


def forced_text(words, budget):
    tokens = []
    while (token := budget.forced) is not None:
        tokens.append(token)
        budget.accept(token)
    return words.decode(tokens).decode()


def feed(words, budget, text):
    for token in words.encode(text):
        assert budget.forced is None
        budget.accept(token)


def test_forces_after_the_budget(words):
    budget = budget_of(words, 3, message="enough")
    feed(words, budget, "x<think>abc"[:1] + "<think>")
    feed(words, budget, "xyz")
    assert forced_text(words, budget) == "enough\n</think>"
    assert not budget.is_thinking


def test_zero_forces_at_once(words):
    budget = budget_of(words, 0)
    budget.accept_prompt(words.encode("\n<think>"))
    assert forced_text(words, budget) == "\n</think>"


def test_natural_end_stops_the_count(words):
    for end in ("</think>", "<tool_call>"):
        budget = budget_of(words, 3)
        budget.accept_prompt(words.encode("<think>"))
        feed(words, budget, "xy" + end + "xxxxxxx")
        assert not budget.is_thinking


def test_an_end_tag_of_several_tokens(words):
    tags = ReasoningTags(start=(1, 2), ends=((3, 4),), forced=(9,))
    budget = ReasoningBudget(tags, 2, words.token_bytes)
    for token in (1, 2, 3, 4):
        budget.accept(token)
    assert not budget.is_thinking and budget.forced is None


def test_waits_for_a_whole_character(words):
    budget = budget_of(words, 1)
    budget.accept_prompt(words.encode("<think>"))
    for byte in "你".encode()[:2]:
        budget.accept(byte)
        assert budget.forced is None
    budget.accept("你".encode()[2])
    assert forced_text(words, budget) == "\n</think>"


def test_a_new_start_tag_arms_again(words):
    budget = budget_of(words, 2)
    for _ in range(2):
        feed(words, budget, "<think>xy")
        assert forced_text(words, budget) == "\n</think>"
        feed(words, budget, "answer")


def test_without_a_limit_reasoning_ends_on_demand(words):
    budget = budget_of(words, None)
    assert not budget.end_now()
    feed(words, budget, "<think>" + "x" * 50)
    assert budget.end_now()
    assert forced_text(words, budget) == "\n</think>"


def test_the_sampler_obeys(words):
    logits = np.full(len(words.token_bytes), -np.inf, dtype=np.float32)
    logits[ord("x")] = 0.0
    budget = budget_of(words, 2)
    budget.accept_prompt(words.encode("<think>"))
    sampler = Sampler(SamplingParams(temperature=0.0), words.sampling, budget=budget)
    output = []
    for _ in range(6):
        output.append(sampler.sample(logits).id)
        sampler.accept(output[-1])
    assert words.decode(output) == b"xx\n</think>xx"


def test_a_grammar_that_binds_the_reasoning_wins(words):
    logits = np.zeros(len(words.token_bytes), dtype=np.float32)
    budget = budget_of(words, 0)
    budget.accept_prompt(words.encode("<think>"))
    constraint = Grammar.from_gbnf('root ::= "yes"').start(words.grammar)
    sampler = Sampler(SamplingParams(temperature=0.0), words.sampling, constraint, budget)
    assert sampler.sample(logits).id == ord("y")
