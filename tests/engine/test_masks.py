"""A slow or failing grammar is its own request's affair."""

import threading

from support.engine_harness import Harness, prompt, request
from support.fake_text import Greedy

from gguf_hybrid.engine.request import Done, Failed, Token


class Grammar(Greedy):
    """Greedy, with a mask whose computation waits for ``gate`` (and may then fail)."""

    constraint = object()

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.fails = fails
        self.prepared = 0

    def prepare_mask(self) -> None:
        assert self.gate.wait(30)
        if self.fails:
            raise ValueError("the grammar broke")
        self.prepared += 1


def solo(tokens: tuple[int, ...]) -> Done:
    (end,) = Harness().run(request(tokens))
    assert isinstance(end, Done)
    return end


def test_a_slow_grammar_holds_up_only_its_own_row() -> None:
    harness, grammar = Harness(), Grammar()
    slow = request(prompt(5, 1), sampler=grammar)
    fast = request(prompt(7, 2))
    harness.engine.submit([slow])
    harness.engine.submit([fast])
    for _ in range(40):
        harness.step()
    assert harness.end_of(fast).tokens == solo(fast.prompt).tokens
    assert not [e for e in harness.events if isinstance(e, Token) and e.id == slow.id]
    grammar.gate.set()
    (end,) = harness.finish([slow])
    assert isinstance(end, Done) and end.tokens == solo(slow.prompt).tokens
    assert grammar.prepared >= len(end.tokens)


def test_a_failing_grammar_ends_its_own_request() -> None:
    harness, grammar = Harness(), Grammar(fails=True)
    grammar.gate.set()
    broken = request(prompt(5, 1), sampler=grammar)
    other = request(prompt(7, 2))
    ends = harness.run(broken, other)
    assert isinstance(ends[0], Failed) and "the grammar broke" in str(ends[0].error)
    assert isinstance(ends[1], Done) and ends[1].tokens == solo(other.prompt).tokens


def test_a_request_cancelled_while_its_grammar_works_frees_the_slot() -> None:
    harness, grammar = Harness(n_slots=1), Grammar()
    waiting = request(prompt(5, 1), sampler=grammar)
    harness.engine.submit([waiting])
    for _ in range(3):
        harness.step()
    harness.engine.cancel(waiting.id)
    (end,) = harness.run(follow := request(prompt(6, 3)))
    grammar.gate.set()
    assert isinstance(end, Done) and end.tokens == solo(follow.prompt).tokens
