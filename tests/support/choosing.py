"""The fake model as a device that chooses tokens itself, greedily, and a sampler that lets it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gguf_hybrid.backend.base import GIVEN, Picked
from gguf_hybrid.sampling.device import Choice, CommonChain
from gguf_hybrid.step import Row, Step

from .fake_model import N_VOCAB, FakeModel, FakeStore
from .fake_text import Greedy

GREEDY = CommonChain(1, 1.0, -np.inf, 1.0, (1.0, 0.0, 0.0), 0, ())


class GreedyChoice(Greedy):
    """``common`` False: the host has to sample."""

    def __init__(self, common: bool = True) -> None:
        super().__init__()
        self.common = common

    def choice(self, n_ahead: int = 0) -> Choice | None:
        return Choice(GREEDY, (), 0.5) if self.common else None

    def accept_choice(self, token: int) -> None:
        self.accept(token)


@dataclass(frozen=True)
class FakeLaunched:
    model: "ChoosingModel"
    step: Step
    picked: Picked

    def wait(self) -> Picked:
        self.model.n_flying -= 1
        self.model.on_wait(self.step)
        return self.picked


class ChoosingModel(FakeModel):
    """Everything is computed at the launch, in order, as on a stream; it is told at ``wait``.

    ``n_ahead`` counts launches in front of which another one had not been waited for. ``on_wait``
    may raise.
    """

    n_sampled_rows = 3

    def __init__(
        self,
        on_row: Callable[[Row], str | None] = lambda row: None,
        on_wait: Callable[[Step], None] = lambda step: None,
    ) -> None:
        super().__init__(on_row)
        self.on_wait = on_wait
        self.n_flying = self.n_ahead = 0
        self._tokens: list[int] = []

    def launch(
        self,
        step: Step,
        store: FakeStore,
        choices: Sequence[Choice | None],
        sources: Sequence[int],
    ) -> FakeLaunched:
        assert len(step.rows) <= self.n_sampled_rows
        rows = [self._known(row, at) for row, at in zip(step.rows, sources, strict=True)]
        assert all(len(row) == row.n_logits == 1 for row in rows)
        step = Step(tuple(rows))
        logits = self.forward(step, store)
        self.n_flying += 1
        self.n_ahead += self.n_flying > 1
        assert self.n_flying <= 2
        finite = np.isfinite(logits).all(axis=1)
        self._tokens = np.where(finite, logits.argmax(axis=1), -1).tolist()
        unchosen = [choice is None for choice in choices]
        picked = Picked(list(self._tokens), logits[unchosen].reshape(-1, N_VOCAB))
        return FakeLaunched(self, step, picked)

    def _known(self, row: Row, source: int) -> Row:
        if source == GIVEN:
            return row
        return replace(row, tokens=np.array([max(self._tokens[source], 0)], np.int32))
