"""A text that arrives in pieces, read only as far as its meaning is certain.

A marker may be cut anywhere. What could still become one stays in the scanner until more text, or
the end of the text, decides; so whatever is read does not depend on where the pieces were cut.
"""

from enum import Enum, auto


class Match(Enum):
    """The text does not begin with any of the markers, or could still turn out to."""

    NO = auto()
    OPEN = auto()


class Scanner:
    """``text`` is what has not been read; once ``has_ended``, nothing more will come."""

    def __init__(self) -> None:
        self.text = ""
        self.has_ended = False

    def push(self, text: str) -> None:
        assert not self.has_ended
        self.text += text

    def end(self) -> None:
        self.has_ended = True

    def take(self, n: int) -> str:
        """Read ``n`` characters."""
        taken, self.text = self.text[:n], self.text[n:]
        return taken

    def skip_space(self) -> None:
        self.text = self.text.lstrip()

    def take_until(self, *markers: str) -> tuple[str, str | None]:
        """Read up to the first marker and the marker, or as far as no marker can begin."""
        found = [(at, marker) for marker in markers if (at := self.text.find(marker)) >= 0]
        if found:
            at, marker = min(found)
            before = self.take(at)
            self.take(len(marker))
            return before, marker
        n_held = 0 if self.has_ended else self.n_uncertain(*markers)
        return self.take(len(self.text) - n_held), None

    def n_uncertain(self, *markers: str) -> int:
        """Length of the longest end of the text that could begin a marker."""
        longest = max(map(len, markers), default=1)
        for n in range(min(longest - 1, len(self.text)), 0, -1):
            if any(marker.startswith(self.text[-n:]) for marker in markers):
                return n
        return 0

    def begins_with(self, *markers: str) -> str | Match:
        """The marker the text begins with, which is not read, or whether one is possible."""
        for marker in markers:
            if self.text.startswith(marker):
                return marker
        may_begin = any(marker.startswith(self.text) for marker in markers)
        return Match.OPEN if may_begin else Match.NO
