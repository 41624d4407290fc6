"""The asyncio side of a task: its events, in order, until each of its requests has ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from .request import Done, Embedded, Event, Failed, Request


class Task:
    """Requests submitted together. Belongs to the event loop's thread."""

    def __init__(self, requests: Sequence[Request], on_cancel: Callable[["Task"], None]) -> None:
        self.requests = tuple(requests)
        self._open = {request.id for request in requests}
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._on_cancel = on_cancel

    @property
    def is_open(self) -> bool:
        """Whether events are still to come."""
        return bool(self._open)

    async def events(self) -> AsyncIterator[Event]:
        """Each event once. Ends after the last request has ended, or when cancelled."""
        n_running = len(self.requests)
        while n_running:
            event = await self._queue.get()
            if event is None:
                return
            n_running -= isinstance(event, Done | Embedded | Failed)
            yield event

    def cancel(self) -> None:
        """Stop all requests that still run or wait; ``events`` ends. May be called again."""
        if self._open:
            self._on_cancel(self)
            self._open.clear()
            self._queue.put_nowait(None)

    def deliver(self, event: Event) -> None:
        """From the worker; what comes after a cancel is dropped."""
        if event.id in self._open:
            if isinstance(event, Done | Embedded | Failed):
                self._open.discard(event.id)
            self._queue.put_nowait(event)
