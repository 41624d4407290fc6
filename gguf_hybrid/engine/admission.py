"""Requests that wait for slots, and which slot each gets (contract, 18.2 and 18.3).

First come, first served, with no limit and no timeout. Requests for a certain slot wait for that
one and get it first; they hold up nobody else. A task of several completions needs as many idle
slots at once, and while the oldest task lacks them no younger one overtakes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .request import Request
from .slot import Slot


@dataclass(frozen=True, slots=True)
class Admitted:
    """The requests of one task and their slots; the first slot reads the prompt."""

    requests: tuple[Request, ...]
    slots: tuple[Slot, ...]


class Admission:
    """The queue. ``similarity`` is ``--slot-prompt-similarity``, 0 = off."""

    def __init__(self, slots: Sequence[Slot], similarity: float) -> None:
        self._slots = slots
        self._similarity = similarity
        self._waiting: list[tuple[Request, ...]] = []

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(len(requests) for requests in self._waiting)

    def add(self, requests: Sequence[Request]) -> None:
        assert 1 <= len(requests) <= len(self._slots)
        self._waiting.append(tuple(requests))

    def remove(self, request_id: int) -> bool:
        """Forget a waiting request, with all of its task; False if it does not wait."""
        for requests in self._waiting:
            if any(r.id == request_id for r in requests):
                self._waiting.remove(requests)
                return True
        return False

    def next(self) -> Admitted | None:
        """The next task that can start, taken out of the queue."""
        idle = [slot for slot in self._slots if slot.is_idle]
        if not idle:
            return None
        anywhere = [requests for requests in self._waiting if requests[0].id_slot < 0]
        certain = [requests for requests in self._waiting if requests[0].id_slot >= 0]
        for requests in (*certain, *anywhere[:1]):
            slots = self._choose(requests, idle)
            if slots:
                self._waiting.remove(requests)
                return Admitted(requests, slots)
        return None

    def _choose(self, requests: tuple[Request, ...], idle: list[Slot]) -> tuple[Slot, ...]:
        """Idle slots for all requests, or none."""
        wanted = requests[0].id_slot
        if wanted >= 0:
            at = wanted % len(self._slots)
            first = next((slot for slot in idle if slot.id == at), None)
        else:
            first = self._most_similar(requests[0].prompt, idle) or longest_idle(idle)[0]
        if first is None or len(idle) < len(requests):
            return ()
        others = longest_idle([slot for slot in idle if slot is not first])
        return (first, *others[: len(requests) - 1])

    def _most_similar(self, prompt: Sequence[int], idle: list[Slot]) -> Slot | None:
        """The slot that shares the largest part of the prompt, if that is large enough."""
        if not self._similarity:
            return None
        tokens = list(prompt)
        shares = [(common_prefix(slot.tokens, tokens) / len(tokens), slot) for slot in idle]
        best = max(shares, key=lambda share: share[0])
        return best[1] if best[0] > self._similarity else None


def longest_idle(slots: Sequence[Slot]) -> list[Slot]:
    """In the order they are taken: released longest ago; of those never used the highest id."""
    return sorted(slots, key=lambda slot: (slot.released, -slot.id))


def common_prefix(a: list[int], b: list[int]) -> int:
    """How many leading tokens are equal."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
