"""A pass between its launch and the moment its results are known.

Where the device chooses the tokens, a pass is launched on top of the one before, whose rows count
as absorbed from then on although their tokens are not known yet:

    pass 1   reads r0, writes r1      launched, committed when pass 2 is planned
    pass 2   reads r1, writes r0      launched; takes its input from the device
    pass 1   lands: its tokens are read; a slot that stops drops its row of pass 2
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gguf_hybrid.backend.base import GIVEN, Launched, Picked
from gguf_hybrid.memory.store import Floats, Store, StoreSpec
from gguf_hybrid.sampling.device import Choice
from gguf_hybrid.step import Row, Step

from .scheduler import Work
from .slot import Slot

Planned = list[tuple[Work, Row]]


class Model(Protocol):
    """What the engine asks of a model (``gguf_hybrid.model``)."""

    @property
    def n_sampled_rows(self) -> int: ...

    def new_store(self, spec: StoreSpec) -> Store: ...

    def forward(self, step: Step, store: Store) -> Floats: ...

    def hidden(self, step: Step, store: Store) -> Floats: ...

    def launch(
        self, step: Step, store: Store, choices: Sequence[Choice | None], sources: Sequence[int]
    ) -> Launched: ...


@dataclass(frozen=True, slots=True)
class Computed:
    """A pass whose tokens the host chooses: it was computed at once, every row has its logits."""

    logits: Floats

    def wait(self) -> Picked:
        return Picked([], self.logits)


@dataclass(slots=True)
class Flight:
    """``choices`` and ``sources`` belong to the rows of ``planned``, one each (``backend.base``).
    ``dropped`` are the places of rows whose request has ended since; their memory was given back.
    """

    planned: Planned
    choices: Sequence[Choice | None]
    sources: Sequence[int]
    launched: Launched
    began: float
    is_committed: bool = False
    dropped: set[int] = field(default_factory=set)

    @property
    def all_chosen(self) -> bool:
        """Nothing of what it computes is needed on the host to go on."""
        return all(choice is not None for choice in self.choices)

    @property
    def rows(self) -> list[Row]:
        """Those that were not dropped."""
        return [row for _, row in self.kept()]

    def kept(self) -> Planned:
        """What was planned and not dropped."""
        return [pair for i, pair in enumerate(self.planned) if i not in self.dropped]

    def slots(self) -> list[tuple[int, Slot]]:
        """Places and slots of the rows that were not dropped."""
        pairs = enumerate(item.slot for item, _ in self.planned)
        return [(i, slot) for i, slot in pairs if i not in self.dropped]

    def drop(self, slot: Slot, abandon: Callable[[Sequence[Row]], None]) -> None:
        """The slot's request has ended: its row, if it has one, counts no more."""
        for i, (item, row) in enumerate(self.planned):
            if item.slot is slot and i not in self.dropped:
                self.dropped.add(i)
                if not self.is_committed:
                    abandon([row])


def launch(
    model: Model, store: Store, planned: Planned, began: float, ahead: Sequence[int] = ()
) -> Flight:
    """Begin the pass, or compute it at once if the device chooses no token of it. ``ahead``: rows
    of the pass before whose tokens, not known yet, these rows take."""
    step = Step(tuple(row for _, row in planned))
    choices = _choices(model, planned, n_ahead=int(bool(ahead)))
    sources = list(ahead) or [GIVEN] * len(planned)
    launched: Launched
    if any(choices):
        launched = model.launch(step, store, choices, sources)
    else:
        assert not ahead
        launched = Computed(model.forward(step, store))
    return Flight(planned, choices, sources, launched, began)


def _choices(model: Model, planned: Planned, n_ahead: int) -> list[Choice | None]:
    nobody: list[Choice | None] = [None] * len(planned)
    jobs = [item.slot.job for item, _ in planned if not item.is_prompt]
    if not len(planned) == len(jobs) <= model.n_sampled_rows:
        return nobody
    return [job.request.sampler.choice(n_ahead) for job in jobs if job is not None]
