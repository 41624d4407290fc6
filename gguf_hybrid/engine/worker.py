"""The one thread that builds the model and runs every step, seen from asyncio.

MLX arrays must be made and evaluated on one thread, so only plain messages cross over: commands go
in through a condition, and the events of a step come out in one ``call_soon_threadsafe``. Idle, the
thread sleeps on the condition. ``slots`` and ``counters`` are snapshots taken between
steps: reading them never waits. A dead thread is loud: ``failure`` is set, every task gets an error
and ``on_failure`` is called, so that the process can exit.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gguf_hybrid.errors import RequestError, StepError

from .cache import CacheStats
from .engine import Engine
from .request import Counters, Event, Failed, Request, SlotView
from .task import Task

logger = logging.getLogger(__name__)

T = TypeVar("T")
Command = Callable[[Engine], None]
Load = Callable[[Callable[[], bool]], Engine]


class LoadStopped(Exception):
    """Raised by ``load`` when the worker was stopped meanwhile."""


class Worker:
    """Owns the engine thread. All methods are for the event loop's thread.

    load               builds the engine, on the engine thread; its argument says whether to give up
                       (raise LoadStopped)
    on_failure         called in the event loop when the thread died
    sleep_idle_seconds unload the model after so long without work; negative = never
    """

    def __init__(
        self,
        load: Load,
        on_failure: Callable[[BaseException], None] = lambda error: None,
        sleep_idle_seconds: float = -1,
    ) -> None:
        self.failure: BaseException | None = None
        self.is_sleeping = False
        self._load = load
        self._on_failure = on_failure
        self._sleep_idle_seconds = sleep_idle_seconds
        self._wakeup = threading.Condition()
        self._commands: list[Command] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._tasks: dict[int, Task] = {}
        self._calls: set[asyncio.Future[Any]] = set()
        self._slots: tuple[SlotView, ...] = ()
        self._counters = Counters()
        self._cache = CacheStats(0, 0, 0)

    # -- from asyncio -------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load. Needs a running event loop, to which events will come."""
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()

    async def ready(self) -> None:
        """Wait until the model is loaded; raises what loading raised."""
        await asyncio.shield(self._ready)

    @property
    def is_ready(self) -> bool:
        return self._ready.done() and self.failure is None

    def slots(self) -> tuple[SlotView, ...]:
        """Every slot as it was after the last step, or at the start of the one that runs."""
        return self._slots

    def counters(self) -> Counters:
        """Totals after the last step."""
        return self._counters

    def cache(self) -> CacheStats:
        """The prompt cache after the last step."""
        return self._cache

    def submit(self, requests: Sequence[Request]) -> Task:
        """Start a task; errors of its requests come as events."""
        task = Task(requests, self._cancel)
        for request in requests:
            self._tasks[request.id] = task
        if self.failure is not None:
            self._deliver([Failed(r.id, _dead(self.failure)) for r in requests])
        else:
            self._send(lambda engine: engine.submit(requests))
        return task

    def call(self, function: Callable[[Engine], T]) -> asyncio.Future[T]:
        """Run ``function`` on the engine thread between two steps."""
        future: asyncio.Future[T] = self._new_call()
        self._send(lambda engine: self._answer(future, function, engine))
        return future

    def call_when_idle(self, id_slot: int, function: Callable[[Engine], T]) -> asyncio.Future[T]:
        """Like ``call``, as soon as the slot is free."""
        future: asyncio.Future[T] = self._new_call()

        def wait(engine: Engine) -> None:
            engine.when_idle(id_slot, lambda: self._answer(future, function, engine))

        self._send(wait)
        return future

    async def stop(self, timeout: float = 2.0) -> bool:
        """End the thread after the pass it runs; False if that takes longer than ``timeout``
        seconds (the thread is a daemon and will not keep the process)."""
        self.request_stop()
        await asyncio.to_thread(self._thread.join, timeout)
        self._fail_all(StepError("the server is stopping", status=503, kind="unavailable_error"))
        return not self._thread.is_alive()

    def request_stop(self) -> None:
        """Ask the thread to end; does not wait."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()

    def _send(self, command: Command) -> None:
        with self._wakeup:
            self._commands.append(command)
            self._wakeup.notify()

    def _cancel(self, task: Task) -> None:
        for request in task.requests:
            self._tasks.pop(request.id, None)

        def cancel(engine: Engine) -> None:
            for request in task.requests:
                engine.cancel(request.id)

        self._send(cancel)

    def _new_call(self) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        if self.failure is not None:
            future.set_exception(_dead(self.failure))
        else:
            self._calls.add(future)
            future.add_done_callback(self._calls.discard)
        return future

    # -- in the event loop, sent by the thread ------------------------------------------------

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            task = self._tasks.get(event.id)
            if task is not None:
                task.deliver(event)
                if not task.is_open:
                    for request in task.requests:
                        self._tasks.pop(request.id, None)

    def _set_ready(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    def _died(self, error: BaseException) -> None:
        if self._ready.done():
            self._on_failure(error)
        else:
            self._ready.set_exception(error)
        self._fail_all(_dead(error))

    def _fail_all(self, error: RequestError) -> None:
        self._deliver([Failed(request_id, error) for request_id in list(self._tasks)])
        for future in list(self._calls):
            if not future.done():
                future.set_exception(error)

    # -- on the engine thread -----------------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._stopping:
                engine = self._load(lambda: self._stopping)
                engine.counters = self._counters
                self._publish(engine)
                self._post(self._set_ready)
                self._serve(engine)
                del engine
                self._sleep()
        except LoadStopped:
            logger.info("stopped while the model was being loaded")
        except BaseException as error:
            logger.critical("the engine thread died", exc_info=error)
            self.failure = error
            self._post(self._died, error)

    def _serve(self, engine: Engine) -> None:
        """Until stopped, or idle for long enough to sleep."""
        while not self._stopping:
            commands = self._take_commands(wait=not engine.is_busy)
            if commands is None:
                return
            for command in commands:
                command(engine)
            engine.admit()
            self._publish(engine)
            if not self._stopping:
                engine.run_pass()
            self._publish(engine)

    def _take_commands(self, wait: bool) -> list[Command] | None:
        """What was sent since the last call; None when it is time to sleep."""
        timeout = self._sleep_idle_seconds if self._sleep_idle_seconds >= 0 else None
        with self._wakeup:
            if wait and not self._wakeup.wait_for(self._has_news, timeout):
                return None
            commands, self._commands = self._commands, []
            return commands

    def _sleep(self) -> None:
        """Without a model, until a command comes."""
        with self._wakeup:
            self.is_sleeping = not self._stopping
            self._wakeup.wait_for(self._has_news)
            self.is_sleeping = False

    def _has_news(self) -> bool:
        return self._stopping or bool(self._commands)

    def _publish(self, engine: Engine) -> None:
        """Let the event loop see the step: snapshots, then its events."""
        self._slots = engine.views()
        self._counters = replace(engine.counters)
        self._cache = engine.cache.stats
        events = engine.take_events()
        if events:
            self._post(self._deliver, events)

    def _answer(
        self, future: "asyncio.Future[T]", function: Callable[[Engine], T], engine: Engine
    ) -> None:
        try:
            result = function(engine)
        except Exception as error:
            self._post(_set_exception, future, error)
        else:
            self._slots = engine.views()  # who hears of the result sees what it changed
            self._post(_set_result, future, result)

    def _post(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # The loop is closed: nobody is left to hear of anything.
            self._stopping = True


def _set_result(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: "asyncio.Future[T]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _dead(error: BaseException) -> RequestError:
    return StepError(f"the engine has stopped: {type(error).__name__}: {error}")
