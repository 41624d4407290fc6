"""Ends a reasoning part that has used its tokens, by forcing the closing text.

    idle --start tag--> counting --budget used--> (inside a character: waiting) --> forcing --> idle
                            `--end tag--> idle

A new start tag arms it again, with the whole budget.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """Token sequences: what opens reasoning, what closes it, and what is forced to close it.

    ``forced`` is the request's message (if any) followed by the first end tag.
    """

    start: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]
    forced: tuple[int, ...]


class _State(Enum):
    IDLE = auto()
    COUNTING = auto()
    WAITING = auto()
    FORCING = auto()


class ReasoningBudget:
    """Counts the tokens of reasoning; ``budget`` None never runs out (but ``end_now`` works)."""

    def __init__(
        self, tags: ReasoningTags, budget: int | None, token_bytes: Sequence[bytes]
    ) -> None:
        self._tags = tags
        self._budget = budget
        self._token_bytes = token_bytes
        self._state = _State.IDLE
        self._left = 0
        self._recent: list[int] = []
        self._to_force: list[int] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def forced(self) -> int | None:
        """The token that must come next, if one must."""
        return self._to_force[0] if self._state is _State.FORCING else None

    @property
    def is_thinking(self) -> bool:
        return self._state is not _State.IDLE

    def accept_prompt(self, generation_prompt: Sequence[int]) -> None:
        """The end of the prompt that opens the reply; it may have opened the reasoning."""
        for token in generation_prompt:
            self.accept(token)

    def accept(self, token: int) -> None:
        match self._state:
            case _State.IDLE:
                if self._matches(token, (self._tags.start,)):
                    self._begin()
            case _State.COUNTING | _State.WAITING:
                self._decoder.decode(self._token_bytes[token])
                if self._matches(token, self._tags.ends):
                    self._rest()
                else:
                    self._count()
            case _State.FORCING:
                del self._to_force[0]
                if not self._to_force:
                    self._rest()

    def end_now(self) -> bool:
        """Ends the reasoning at the next whole character; false where there is none going on."""
        if self._state is not _State.COUNTING:
            return False
        self._force_at_boundary()
        return True

    def _begin(self) -> None:
        self._state = _State.COUNTING
        self._recent.clear()
        self._decoder.reset()
        self._left = -1 if self._budget is None else self._budget
        if self._left == 0:
            self._force_at_boundary()

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0 or self._state is _State.WAITING:
            self._force_at_boundary()

    def _force_at_boundary(self) -> None:
        unfinished, _ = self._decoder.getstate()
        self._state = _State.WAITING if unfinished else _State.FORCING
        self._to_force = list(self._tags.forced)

    def _rest(self) -> None:
        self._state = _State.IDLE
        self._recent.clear()

    def _matches(self, token: int, tags: Sequence[tuple[int, ...]]) -> bool:
        """Whether the tokens up to this one end in one of ``tags``."""
        longest = max(map(len, tags))
        self._recent = [*self._recent, token][-longest:]
        return any(tuple(self._recent[-len(tag) :]) == tag for tag in tags if tag)
