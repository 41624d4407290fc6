"""Runs the passes: plans the rows, launches, lands, and takes back what failed.

A row that fails ends its own request: a failing pass is abandoned, which leaves every sequence as
it was, and repeated in halves until the guilty row is alone.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from gguf_hybrid.backend.base import Picked
from gguf_hybrid.errors import RequestError, StepError
from gguf_hybrid.memory.store import Floats
from gguf_hybrid.step import Step

from .contents import Contents
from .flight import Flight, Model, Planned, launch
from .request import Counters
from .scheduler import Pace, Work
from .slot import Slot

logger = logging.getLogger(__name__)

UNKNOWN = np.zeros(1, np.int32)
"""Stands for a token that only the device knows yet."""


class Settler(Protocol):
    """The engine, as the passes see it."""

    counters: Counters
    slots: list[Slot]

    def settle(self, flight: Flight, picked: Picked) -> None: ...

    def settle_embeddings(self, planned: Planned, hidden: Floats) -> None: ...

    def fail(self, slot: Slot, error: RequestError) -> None: ...

    def can_admit(self) -> bool: ...


class Passes:
    """One pass at a time, or one on top of another. ``clock`` gives seconds."""

    def __init__(
        self,
        model: Model,
        contents: Contents,
        pace: Pace,
        clock: Callable[[], float],
        settler: Settler,
    ) -> None:
        self._model, self._contents, self._memory = model, contents, contents.memory
        self._pace, self._clock, self._settler = pace, clock, settler
        self._flight: Flight | None = None
        """The pass that was launched and has not landed."""

    def run(self, next_work: Callable[[], Sequence[Work]]) -> bool:
        """Land the pass that was launched before, or launch and land one with ``next_work``; False
        if there was nothing to do. Where the device chooses the tokens, another one is launched
        before the results are looked at."""
        flight, self._flight = self._flight, None
        if flight is not None and not flight.rows:
            self._land(flight)
            flight = None
        if flight is None:
            work = next_work()
            if not work:
                return False
            flight = self._launch(work)
        if flight is not None:
            self._flight = self._overtake(flight)
            self._land(flight)
        return True

    def drop(self, slot: Slot) -> None:
        """The slot's request has ended: a row of it that is on its way counts no more."""
        if self._flight is not None:
            self._flight.drop(slot, self._memory.abandon)

    def _launch(self, work: Sequence[Work]) -> Flight | None:
        """Two steps where there are embeddings: a step ends in logits or in hidden states, and the
        latter is run at once. None if it failed or nothing but embeddings was to do."""
        planned = self._plan(work)
        completions = [pair for pair in planned if not pair[0].is_embedding]
        embeddings = [pair for pair in planned if pair[0].is_embedding]
        flight = None
        if completions:
            try:
                flight = launch(self._model, self._memory.store, completions, self._clock())
            except Exception as error:
                self._abandon(completions, error)
        if embeddings:
            self._run_embeddings(embeddings)
        return flight

    def _run_embeddings(self, planned: Planned) -> None:
        began = self._clock()
        rows = [row for _, row in planned]
        try:
            hidden = self._model.hidden(Step(tuple(rows)), self._memory.store)
        except Exception as error:
            self._abandon(planned, error)
            return
        self._memory.commit(rows)
        self._count(planned, self._clock() - began)
        self._settler.settle_embeddings(planned, hidden)

    def _plan(self, work: Sequence[Work]) -> Planned:
        """Reserve memory for each row. Prompts wait while others can go on without them."""
        planned: Planned = []
        refused = []
        for item in work:
            row = self._contents.reserve(item)
            if row is None:
                refused.append(item)
            else:
                planned.append((item, row))
        for item in refused:
            if not item.is_prompt or not planned:
                self._settler.fail(item.slot, StepError("Context size has been exceeded."))
                break
        return planned

    def _overtake(self, flight: Flight) -> Flight | None:
        """Launch the pass after ``flight`` before that has landed, if the device chooses all of its
        tokens and nobody else has anything to do: then all that is open is who takes part no more.
        """
        flying = flight.slots()
        if not flight.all_chosen or self._others_wait([slot for _, slot in flying]):
            return None
        going_on = [(i, slot) for i, slot in flying if not slot.is_at_last_token()]
        if not going_on:
            return None
        self._memory.commit(flight.rows)
        flight.is_committed = True
        planned: Planned = []
        try:
            for _, slot in going_on:
                work = Work(slot, UNKNOWN, 1)
                row = self._contents.reserve(work)
                if row is None:
                    raise MemoryError("no KV block is left")
                planned.append((work, row))
            ahead = [i for i, _ in going_on]
            return launch(self._model, self._memory.store, planned, self._clock(), ahead)
        except Exception as error:
            logger.debug("the next pass is not launched ahead: %s", error)
            self._memory.abandon([row for _, row in planned])
            return None

    def _others_wait(self, flying: Sequence[Slot]) -> bool:
        busy = (slot for slot in self._settler.slots if not slot.is_idle)
        return self._settler.can_admit() or any(slot not in flying for slot in busy)

    def _land(self, flight: Flight) -> None:
        """Wait for the results; what they lead to happens here."""
        try:
            picked = flight.launched.wait()
        except Exception as error:
            self._crash(flight, error)
            return
        if not flight.is_committed:
            self._memory.commit(flight.rows)
        self._count(flight.kept(), self._clock() - flight.began)
        self._settler.settle(flight, picked)

    def _crash(self, flight: Flight, error: Exception) -> None:
        """What is committed cannot be taken back: its requests end, and so do those ahead."""
        if not flight.is_committed:
            self._abandon(flight.kept(), error)
            return
        logger.error("the model failed", exc_info=error)
        for item, _ in flight.kept():
            self._settler.fail(item.slot, as_step_error("model", error))

    def _abandon(self, planned: Planned, error: Exception) -> None:
        """A pass failed and changed nothing: repeat its halves, down to the guilty row."""
        self._memory.abandon([row for _, row in planned])
        work = [item for item, _ in planned]
        if len(work) == 1:
            logger.error("slot %d: the model failed", work[0].slot.id, exc_info=error)
            self._settler.fail(work[0].slot, as_step_error("model", error))
            return
        middle = len(work) // 2
        for half in (work[:middle], work[middle:]):
            flight = self._launch([item for item in half if item.slot.job is not None])
            if flight is not None:
                self._land(flight)

    def _count(self, planned: Planned, seconds: float) -> None:
        counters = self._settler.counters
        n_prompt = sum(len(row) for item, row in planned if item.is_prompt)
        n_decoding = sum(not item.is_prompt for item, _ in planned)
        self._pace.note(n_prompt, seconds)
        counters.n_busy_slots += sum(not slot.is_idle for slot in self._settler.slots)
        counters.n_decode += 1
        counters.n_decode_rows += n_decoding
        counters.n_decode_passes += n_decoding > 0


def as_step_error(what: str, error: Exception) -> RequestError:
    """What the client is told; errors made for it are passed on."""
    if isinstance(error, RequestError):
        return error
    logger.error("the %s failed", what, exc_info=error)
    return StepError(f"the {what} failed: {type(error).__name__}: {error}")
