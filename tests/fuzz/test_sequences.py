"""Any order of submit, stream, cancel, save, restore, erase, evict: every token is the right one.

The engine runs many sequences over a small memory; the oracle absorbs each prompt alone, whole, in
one row of a fresh store. Logits are compared bit for bit at every token, so a state, a block or a
checkpoint of somebody else cannot hide. Hypothesis prints the events of a failure, shortened, with
the code that repeats it.
"""

from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.engine_harness import Harness, prompt, request
from support.fake_model import LAYOUT, FakeModel, FakeStore

from gguf_hybrid.engine.request import Done, Failed, Request
from gguf_hybrid.errors import ContextOverflowError
from gguf_hybrid.memory.sequence_file import pack, unpack
from gguf_hybrid.memory.store import StoreSpec
from gguf_hybrid.step import BLOCK, ZERO_STATE, Row, Step

N_CTX = 512


@cache
def next_logits(tokens: tuple[int, ...]) -> np.ndarray:
    """The oracle: all tokens in one row of a store that nobody else uses."""
    n_blocks = -(-len(tokens) // BLOCK)
    store = FakeStore(StoreSpec(n_state_rows=1, n_blocks=n_blocks, kv_type="f32"))
    ids = np.array(tokens, np.int32)
    row = Row(0, 0, ids, ZERO_STATE, (0,), np.arange(n_blocks, dtype=np.int32), 1)
    return FakeModel(rounds=False).forward(Step((row,)), store)[0]


def check_rows(each: Request) -> None:
    """Everything a request has seen so far is what the oracle sees."""
    sampler: Any = each.sampler
    known = each.prompt
    for logits, token in zip(sampler.rows, sampler.accepted, strict=True):
        assert np.array_equal(logits, next_logits(known)), f"request {each.id} differs"
        known += (token,)


class Sequences(RuleBasedStateMachine):
    """One engine and what its clients do. Prompts share beginnings; talks go on from answers."""

    @initialize(
        n_slots=st.integers(1, 4),
        kv_unified=st.booleans(),
        budget=st.sampled_from([0, 40_000, 1 << 20]),
        n_ubatch=st.sampled_from([64, 200, 512]),
    )
    def start(self, n_slots: int, kv_unified: bool, budget: int, n_ubatch: int) -> None:
        self.h = Harness(
            n_slots,
            N_CTX,
            FakeModel(rounds=False),
            kv_unified,
            cache_ram_nbytes=budget,
            n_ubatch=n_ubatch,
        )
        self.requests: dict[int, Request] = {}
        self.tasks: list[list[int]] = []
        self.cancelled: set[int] = set()
        self.talks: list[tuple[int, ...]] = [()]
        self.files: list[bytes] = []

    # -- what clients do ----------------------------------------------------------------------

    def submit(self, group: list[Request]) -> None:
        self.requests |= {each.id: each for each in group}
        self.tasks.append([each.id for each in group])
        self.h.engine.submit(group)

    @rule(
        talk=st.integers(0, 50),
        seed=st.integers(0, 3),
        n=st.integers(1, 300),
        n_predict=st.integers(1, 12),
        n_choices=st.integers(1, 2),
        cache_prompt=st.booleans(),
        id_slot=st.integers(-1, 3),
    )
    def ask(
        self,
        talk: int,
        seed: int,
        n: int,
        n_predict: int,
        n_choices: int,
        cache_prompt: bool,
        id_slot: int,
    ) -> None:
        """A new conversation or one more turn; too long ones are refused."""
        tokens = self.talks[talk % len(self.talks)] + prompt(n, seed)
        fields = {"cache_prompt": cache_prompt, "id_slot": id_slot if n_choices == 1 else -1}
        n_choices = min(n_choices, len(self.h.engine.slots))
        self.submit([request(tokens, n_predict, **fields) for _ in range(n_choices)])

    @rule(seed=st.integers(0, 3), n_free=st.integers(1, 30))
    def fill_the_context(self, seed: int, n_free: int) -> None:
        self.submit([request(prompt(N_CTX - n_free, seed), -1)])

    @rule(n=st.integers(5, 12))
    def overflow_the_queue(self, n: int) -> None:
        for i in range(n):
            self.submit([request(prompt(20 + i, i % 3), 2)])

    @rule(n=st.integers(1, 8))
    def stream(self, n: int) -> None:
        for _ in range(n):
            self.step()

    @precondition(lambda self: self.tasks)
    @rule(pick=st.integers(0, 1000))
    def cancel(self, pick: int) -> None:
        """A client leaves; its task may run, wait, or have ended."""
        for each in self.tasks[pick % len(self.tasks)]:
            self.cancelled.add(each)
            self.h.engine.cancel(each)

    @rule(slot=st.integers(0, 3))
    def save(self, slot: int) -> None:
        engine = self.h.engine
        engine.when_idle(slot, lambda: self.files.append(pack(engine.save_slot(slot), LAYOUT)))

    @precondition(lambda self: self.files)
    @rule(slot=st.integers(0, 3), pick=st.integers(0, 100), goes_on=st.booleans())
    def restore(self, slot: int, pick: int, goes_on: bool) -> None:
        """Often with a request right behind it that goes on from the file."""
        saved = unpack(self.files[pick % len(self.files)], LAYOUT)
        engine = self.h.engine
        engine.when_idle(slot, lambda: engine.load_slot(slot, saved))
        if goes_on and saved.tokens:
            self.submit([request((*saved.tokens, *prompt(5, 2)), 3, id_slot=slot)])

    @rule(slot=st.integers(0, 3))
    def erase(self, slot: int) -> None:
        self.h.engine.when_idle(slot, lambda: self.h.engine.erase_slot(slot))

    @rule(n=st.integers(1, 3))
    def evict(self, n: int) -> None:
        for _ in range(n):
            self.h.engine.cache.drop_one()

    # -- what must hold -----------------------------------------------------------------------

    def step(self) -> None:
        for event in self.h.step():
            if isinstance(event, Done):
                self.check_end(self.requests[event.id], event)
            elif isinstance(event, Failed):
                self.check_failure(self.requests[event.id], event)

    def check_end(self, each: Request, end: Done) -> None:
        room = N_CTX - len(each.prompt)
        n = room if each.n_predict < 0 else min(each.n_predict, room)
        assert list(end.tokens) == each.sampler.accepted and len(end.tokens) == n
        assert end.truncated == (n == room)
        check_rows(each)
        self.talks = [*self.talks[-20:], each.prompt + end.tokens]

    def check_failure(self, each: Request, end: Failed) -> None:
        """A prompt beyond the context, a unified pool that all slots have filled, or a client that
        has left already, to whom nothing is sent."""
        if each.id in self.cancelled:
            return
        if len(each.prompt) >= N_CTX:
            assert isinstance(end.error, ContextOverflowError)
        else:
            assert self.h.options.limits.kv_unified
            assert str(end.error) == "Context size has been exceeded."
            check_rows(each)

    @invariant()
    def budgets_hold(self) -> None:
        self.h.engine.contents.check()
        assert self.h.engine.cache.stats.n_bytes <= (self.h.options.cache_ram_nbytes or 0)

    def teardown(self) -> None:
        if not hasattr(self, "h"):
            return
        while self.h.engine.is_busy:
            self.step()
        ended = [e.id for e in self.h.events if isinstance(e, Done | Failed)]
        assert len(ended) == len(set(ended))
        assert set(self.requests) - self.cancelled <= set(ended) <= set(self.requests)
        for each in self.requests.values():
            check_rows(each)
        self.check_nothing_stays()

    def check_nothing_stays(self) -> None:
        """Erased and evicted, the memory is empty again."""
        engine = self.h.engine
        while engine.cache.drop_one():
            pass
        for slot in engine.slots:
            engine.erase_slot(slot.id)
        assert engine.memory.store.kv_nbytes() == 0 and engine.cache.stats.n_bytes == 0


@pytest.mark.parametrize("n_runs", [25, pytest.param(1000, marks=pytest.mark.full)])
def test_any_order_of_events_gives_the_tokens_of_a_single_sequence(n_runs: int) -> None:
    """25 runs of 40 events."""
    run_state_machine_as_test(
        Sequences,
        settings=settings(
            max_examples=n_runs,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
