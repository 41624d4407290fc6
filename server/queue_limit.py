"""``--queue-limit``: how many requests may wait for a slot before the server says so.

llama-server queues without end; this is the one admission rule of our own, off by default. It
counts requests from admission to their last byte, so a burst cannot slip past it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import QueueFull


class QueueLimit:
    """Counts the completions in hand. ``limit`` 0 lets everything in."""

    def __init__(self, n_slots: int, limit: int) -> None:
        self._most = n_slots + limit if limit else None
        self._n_inside = 0

    @contextmanager
    def entered(self, n: int) -> Iterator[None]:
        """Hold ``n`` places. QueueFull when they would not fit; alone, any request is let in."""
        if self._most is not None and self._n_inside and self._n_inside + n > self._most:
            raise QueueFull()
        self._n_inside += n
        try:
            yield
        finally:
            self._n_inside -= n
