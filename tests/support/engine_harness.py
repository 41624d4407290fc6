"""Engines over the fake model, and what a test does with them: submit, step, collect."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gguf_hybrid.engine.engine import Engine
from gguf_hybrid.engine.limits import share_context
from gguf_hybrid.engine.options import EngineOptions
from gguf_hybrid.engine.request import Done, Embedded, Event, Failed, Request, Token
from gguf_hybrid.engine.scheduler import Pace

from .fake_model import LAYOUT, N_VOCAB, FakeModel
from .fake_text import Greedy, Words

_ids = itertools.count(1000)


def prompt(n: int, seed: int = 0) -> tuple[int, ...]:
    """Random tokens."""
    return tuple(np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist())


def request(tokens: Sequence[int], n_predict: int = 8, **fields: Any) -> Request:
    fields = {"sampler": Greedy(), "reader": Words()} | fields
    return Request(id=next(_ids), prompt=tuple(tokens), n_predict=n_predict, **fields)


class Harness:
    """One engine; its clock goes by ``seconds_per_token`` with each pass."""

    def __init__(
        self,
        n_slots: int = 4,
        n_ctx: int = 2048,
        model: FakeModel | None = None,
        kv_unified: bool = False,
        seconds_per_token: float = 1e-6,
        **options: Any,
    ) -> None:
        self.model = model or FakeModel()
        limits = share_context(n_ctx if kv_unified else n_ctx * n_slots, n_slots, kv_unified, 4096)
        pace = Pace(0.2, 1.0, seconds_per_token)
        fields = {"eog_ids": frozenset(), "cache_ram_nbytes": 0, "pace": pace}
        self.clock = 0.0
        self.seconds_per_token = seconds_per_token
        self.options = EngineOptions(limits=limits, layout=LAYOUT, **(fields | options))
        self.engine = Engine(self, self.options, lambda: self.clock)
        self.events: list[Event] = []

    # -- the model as the engine sees it ------------------------------------------------------

    def new_store(self, spec: Any) -> Any:
        return self.model.new_store(spec)

    def forward(self, step: Any, store: Any) -> Any:
        self.clock += step.n_tokens * self.seconds_per_token
        return self.model.forward(step, store)

    @property
    def n_sampled_rows(self) -> int:
        return self.model.n_sampled_rows

    def launch(self, step: Any, store: Any, choices: Any, sources: Any) -> Any:
        self.clock += step.n_tokens * self.seconds_per_token
        return self.model.launch(step, store, choices, sources)

    def hidden(self, step: Any, store: Any) -> Any:
        self.clock += step.n_tokens * self.seconds_per_token
        return self.model.hidden(step, store)

    # -- driving ------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        events = self.engine.step()
        self.engine.contents.check()
        self.events += events
        return events

    def run(self, *requests: Request) -> list[Done | Embedded | Failed]:
        """Submit each as a task of its own, step until idle; how each ended, in their order."""
        for each in requests:
            self.engine.submit([each])
        return self.finish(requests)

    def finish(self, requests: Iterable[Request] = ()) -> list[Done | Embedded | Failed]:
        while self.engine.is_busy:
            self.step()
        return [self.end_of(each) for each in requests]

    def end_of(self, each: Request) -> Done | Embedded | Failed:
        kinds = Done | Embedded | Failed
        ends = [e for e in self.events if isinstance(e, kinds) and e.id == each.id]
        assert len(ends) == 1, "a request ends exactly once"
        return ends[0]

    def tokens_of(self, each: Request) -> list[int]:
        return [e.token for e in self.events if isinstance(e, Token) and e.id == each.id]


def alone(tokens: Sequence[int], n_predict: int = 8, **fields: Any) -> list[np.ndarray]:
    """The logits of a request on a fresh server with nobody else there."""
    each = request(tokens, n_predict, **fields)
    (end,) = Harness(n_slots=1).run(each)
    assert isinstance(end, Done)
    return each.sampler.rows


def same_rows(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    """Bit for bit."""
    return len(a) == len(b) and all((x == y).all() for x, y in zip(a, b, strict=True))
