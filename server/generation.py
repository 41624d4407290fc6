"""The engine's events for one HTTP request, and what becomes of them when the client leaves.

A request may ask for several prompts and several choices of each: every prompt is one engine task,
the events of all of them come out of one stream with the index of their choice. However the block
is left (end, error, client gone) nothing of it keeps running in the engine.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Protocol, Self

from gguf_hybrid.engine.request import Done, Embedded, Event, Failed, Request, Timings

from .request_log import log_done

Prompts = Sequence[Sequence[Request]]
"""Engine requests by prompt and choice."""


class Task(Protocol):
    """What the engine's worker hands out for requests that start together."""

    def events(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None: ...


class Worker(Protocol):
    """The part of the engine's worker that generating needs."""

    def submit(self, requests: Sequence[Request]) -> Task: ...


class Generation:
    """``async with Generation(worker, prompts) as generation`` then ``next()`` until ``finished``.

    ``Failed`` is raised as its RequestError; everything else comes out as (index, event), where
    the index counts choices through all prompts.
    """

    def __init__(self, worker: Worker, prompts: Prompts) -> None:
        self._worker = worker
        self._prompts = prompts
        self._index = {
            request.id: i for i, request in enumerate(r for requests in prompts for r in requests)
        }
        self._running = len(self._index)
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._tasks: list[Task] = []
        self._pumps: list[asyncio.Task[None]] = []

    @property
    def finished(self) -> bool:
        """Every choice is done."""
        return self._running == 0

    async def __aenter__(self) -> Self:
        for requests in self._prompts:
            if not requests[0].prompt:
                self._finish_empty(requests)
                continue
            task = self._worker.submit(requests)
            self._tasks.append(task)
            self._pumps.append(asyncio.create_task(self._pump(task)))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            if not self.finished:
                task.cancel()
        for pump in self._pumps:
            pump.cancel()

    async def next(self, timeout: float | None = None) -> tuple[int, Event] | None:
        """The next event; None after ``timeout`` seconds without one."""
        try:
            async with asyncio.timeout(timeout):
                event = await self._events.get()
        except TimeoutError:
            return None
        match event:
            case Exception():
                raise event
            case Failed(error=error):
                raise error
            case Done():
                self._running -= 1
                log_done(event)
            case Embedded():
                self._running -= 1
        return self._index[event.id], event

    def _finish_empty(self, requests: Sequence[Request]) -> None:
        """An empty prompt has nothing to go on from: it ends at once, without the engine."""
        for request in requests:
            id_slot = max(request.id_slot, 0)
            nothing = Done(request.id, id_slot, (), "", "none", "", False, False, 0, Timings())
            self._events.put_nowait(nothing)

    async def _pump(self, task: Task) -> None:
        try:
            async for event in task.events():
                self._events.put_nowait(event)
        except Exception as error:  # handed to the one who waits in next()
            self._events.put_nowait(error)
