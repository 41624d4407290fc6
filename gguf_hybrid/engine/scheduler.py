"""Which rows the next pass has: every decoding slot, and prompt pieces of the others.

Two limits on the prompt tokens of a pass: ``n_ubatch``, and time, so that a stream beside a long
prompt never waits longer than a stated bound. Time is estimated from the passes before. Neither
limit moves a cut (see ``cuts``), only the number of pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gguf_hybrid.step import CHUNK, Ids

from .cuts import first_piece, row_end
from .slot import Phase, Slot


@dataclass(frozen=True, slots=True)
class Work:
    """The next row of a slot."""

    slot: Slot
    tokens: Ids
    n_logits: int

    @property
    def is_prompt(self) -> bool:
        assert self.slot.job is not None
        return self.slot.job.phase is Phase.PROMPT

    @property
    def is_embedding(self) -> bool:
        assert self.slot.job is not None
        return self.slot.job.vectors is not None


@dataclass(slots=True)
class Pace:
    """Measured seconds per prompt token; before any measurement one chunk is read at a time.

    busy_seconds  most that a pass may take for prompts while others decode
    idle_seconds  the same when nobody waits: bounds how long a stop or a cancel takes
    """

    busy_seconds: float = 0.2
    idle_seconds: float = 1.0
    seconds_per_token: float = 0.0

    def note(self, n_prompt_tokens: int, seconds: float) -> None:
        """A pass with prompt tokens took so long. Short ones say nothing about long ones."""
        if n_prompt_tokens >= CHUNK:
            latest = seconds / n_prompt_tokens
            self.seconds_per_token = (self.seconds_per_token or latest) / 2 + latest / 2

    def n_tokens(self, n_ubatch: int, decoding: bool) -> int:
        """Prompt tokens the next pass may have: a multiple of ``CHUNK``, at least one chunk."""
        if not self.seconds_per_token:
            return CHUNK
        seconds = self.busy_seconds if decoding else self.idle_seconds
        n = min(n_ubatch, int(seconds / self.seconds_per_token))
        return max(n // CHUNK, 1) * CHUNK


class Scheduler:
    """Chooses the rows of each pass."""

    def __init__(self, n_ubatch: int, pace: Pace) -> None:
        self.n_ubatch = n_ubatch
        self.pace = pace

    def next_pass(self, slots: Sequence[Slot]) -> list[Work]:
        """Decoding rows first. Empty when no slot has anything to do."""
        in_phase = {phase: [s for s in slots if s.job and s.job.phase is phase] for phase in Phase}
        work = [Work(slot, slot.next_token(), 1) for slot in in_phase[Phase.DECODE]]
        budget = self.pace.n_tokens(self.n_ubatch, decoding=bool(work))
        return work + self._prompt_rows(in_phase[Phase.PROMPT], budget)

    def _prompt_rows(self, slots: list[Slot], budget: int) -> list[Work]:
        """Shared out evenly; what the shorter prompts leave goes to the longer ones.

        If the budget is smaller than every first piece, the oldest request still gets its own.
        """
        rows: list[Work] = []
        by_length = sorted(slots, key=_n_unread)
        for i, slot in enumerate(by_length):
            share = budget // (len(by_length) - i)
            row = _prompt_row(slot, max(share, CHUNK) if budget >= CHUNK else share)
            if row is not None:
                rows.append(row)
                budget -= len(row.tokens)
        if not rows and slots:
            oldest = min(slots, key=_started)
            rows = [_smallest_row(oldest)]
        return rows


def _n_unread(slot: Slot) -> int:
    assert slot.job is not None
    return slot.job.n_prompt - len(slot.tokens)


def _started(slot: Slot) -> float:
    assert slot.job is not None
    return slot.job.started


def _prompt_row(slot: Slot, budget: int) -> Work | None:
    assert slot.job is not None
    end = row_end(len(slot.tokens), slot.job.cuts, budget)
    return _row_until(slot, end) if end > len(slot.tokens) else None


def _smallest_row(slot: Slot) -> Work:
    assert slot.job is not None
    start = len(slot.tokens)
    return _row_until(slot, start + first_piece(start, slot.job.cuts))


def _row_until(slot: Slot, end: int) -> Work:
    assert slot.job is not None
    return Work(slot, slot.next_prompt_tokens(end), int(end == slot.job.n_prompt))
