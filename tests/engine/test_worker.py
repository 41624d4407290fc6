"""The engine thread, seen from asyncio."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
from support.engine_harness import Harness, alone, prompt, request, same_rows
from support.fake_model import FakeModel

from gguf_hybrid.engine.engine import Engine
from gguf_hybrid.engine.request import Done, Event, Failed, Started, Token
from gguf_hybrid.engine.task import Task
from gguf_hybrid.engine.worker import LoadStopped, Worker
from gguf_hybrid.step import Row


class Gate:
    """Holds the engine inside a pass until it is opened."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.entered = threading.Event()

    def __call__(self, row: Row) -> None:
        self.entered.set()
        assert self.is_open.wait(20)


async def collect(task: Task) -> list[Event]:
    return [event async for event in task.events()]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.002)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def worker(gate: Gate) -> AsyncIterator[Worker]:
    worker = Worker(lambda stopping: Harness(n_slots=2, model=FakeModel(gate)).engine)
    worker.start()
    await worker.ready()
    yield worker
    gate.is_open.set()
    if worker.failure is None:
        await worker.call(lambda engine: engine.contents.check())
    assert await worker.stop()


async def test_task_gets_its_own_events(worker: Worker) -> None:
    requests = [request(prompt(40 * (i + 1), i), 6) for i in range(5)]
    results = await asyncio.gather(*[collect(worker.submit([each])) for each in requests])
    for each, events in zip(requests, results, strict=True):
        assert {event.id for event in events} == {each.id}
        assert isinstance(events[0], Started) and isinstance(events[-1], Done)
        assert sum(isinstance(event, Token) for event in events) == 6
        assert same_rows(each.sampler.rows, alone(each.prompt, 6))


async def test_task_of_several_ends_with_the_last(worker: Worker) -> None:
    requests = [request(prompt(30), 2 + i) for i in range(2)]
    events = await collect(worker.submit(requests))
    assert [type(e) for e in events if isinstance(e, Done)] == [Done, Done]
    assert events[-1].id == requests[1].id


async def test_refused_request_is_an_event(worker: Worker) -> None:
    (event,) = await collect(worker.submit([request(prompt(5000))]))
    assert isinstance(event, Failed) and event.error.status == 400


async def test_snapshots_are_read_while_a_pass_runs(worker: Worker, gate: Gate) -> None:
    gate.is_open.clear()
    gate.entered.clear()
    first, second, third = (request(prompt(10, i), 2, echo={"i": i}) for i in range(3))
    tasks = [worker.submit([each]) for each in (first, second, third)]
    await asyncio.to_thread(gate.entered.wait, 10)
    await until(lambda: worker.counters().requests_processing > 0)
    busy = [slot for slot in worker.slots() if slot.is_processing]
    assert {"i": 0} in [slot.params for slot in busy]
    gate.is_open.set()
    await asyncio.gather(*[collect(task) for task in tasks])
    await until(lambda: worker.counters().requests_processing == 0)
    assert worker.counters().tokens_predicted == 6


async def test_cancel_frees_the_slot(worker: Worker) -> None:
    endless = [worker.submit([request(prompt(10, i), -1)]) for i in range(2)]
    last = request(prompt(20), 2)
    waiting = worker.submit([last])
    await anext(endless[0].events())
    endless[0].cancel()
    endless[0].cancel()
    events = await collect(waiting)
    assert isinstance(events[-1], Done)
    endless[1].cancel()
    await until(lambda: worker.counters().requests_processing == 0)


async def test_cancelled_task_has_no_more_events(worker: Worker) -> None:
    task = worker.submit([request(prompt(10), -1)])
    events = task.events()
    assert isinstance(await anext(events), Started)
    task.cancel()
    kinds = [type(event) async for event in events]
    assert Done not in kinds and Failed not in kinds


async def test_call_runs_on_the_engine_thread(worker: Worker) -> None:
    name = await worker.call(lambda engine: threading.current_thread().name)
    assert name == "engine"
    with pytest.raises(KeyError, match="nothing"):
        await worker.call(lambda engine: {}["nothing"])
    assert worker.failure is None


async def test_call_for_a_slot_waits_until_it_is_free(worker: Worker) -> None:
    task = worker.submit([request(prompt(10), -1, id_slot=1)])
    await anext(task.events())
    other = await worker.call_when_idle(0, lambda engine: engine.slots[0].is_idle)
    busy = worker.call_when_idle(1, lambda engine: len(engine.slots[1].tokens))
    await worker.call(lambda engine: None)
    assert other and not busy.done()
    task.cancel()
    assert await busy > 0


async def test_idle_thread_does_not_run(worker: Worker) -> None:
    await collect(worker.submit([request(prompt(10), 2)]))
    await worker.call(lambda engine: None)
    before = time.process_time()
    await asyncio.sleep(0.2)
    assert time.process_time() - before < 0.1


# -- ends -----------------------------------------------------------------------------------------


def broken(row: Row) -> None:
    raise SystemError("engine")


class Collapse(BaseException):
    """Not an error of one request."""


def collapse(row: Row) -> None:
    raise Collapse("device lost")


async def test_failing_model_keeps_serving() -> None:
    worker = Worker(lambda stopping: Harness(model=FakeModel(broken)).engine)
    worker.start()
    for _ in range(2):
        events = await collect(worker.submit([request(prompt(10))]))
        assert isinstance(events[-1], Failed)
    assert worker.failure is None and await worker.stop()


async def test_dead_thread_is_loud() -> None:
    died: list[BaseException] = []
    worker = Worker(lambda stopping: Harness(model=FakeModel(collapse)).engine, died.append)
    worker.start()
    await worker.ready()
    events = await collect(worker.submit([request(prompt(10))]))
    assert isinstance(events[-1], Failed) and "device lost" in str(events[-1].error)
    assert isinstance(worker.failure, Collapse) and died == [worker.failure]
    (event,) = await collect(worker.submit([request(prompt(10))]))
    assert isinstance(event, Failed)
    with pytest.raises(Exception, match="device lost"):
        await worker.call(lambda engine: None)
    assert await worker.stop()


async def test_failed_load_is_raised() -> None:
    def load(stopping: Callable[[], bool]) -> Engine:
        raise ValueError("no such file")

    worker = Worker(load)
    worker.start()
    with pytest.raises(ValueError, match="no such file"):
        await worker.ready()
    assert await worker.stop()


async def test_stop_while_loading() -> None:
    def load(stopping: Callable[[], bool]) -> Engine:
        while not stopping():
            time.sleep(0.002)
        raise LoadStopped

    worker = Worker(load)
    worker.start()
    task = worker.submit([request(prompt(10))])
    assert await worker.stop() and worker.failure is None
    assert isinstance((await collect(task))[0], Failed)


async def test_stop_while_requests_run_and_wait() -> None:
    worker = Worker(lambda stopping: Harness(n_slots=1).engine)
    worker.start()
    tasks = [worker.submit([request(prompt(10, i), -1)]) for i in range(3)]
    await anext(tasks[0].events())
    assert await worker.stop()
    for task in tasks[1:]:
        assert isinstance((await collect(task))[-1], Failed)


async def test_sleeping_model_is_loaded_again_on_demand() -> None:
    loads: list[int] = []

    def load(stopping: Callable[[], bool]) -> Engine:
        loads.append(1)
        return Harness().engine

    worker = Worker(load, sleep_idle_seconds=0.02)
    worker.start()
    await collect(worker.submit([request(prompt(10), 3)]))
    await until(lambda: worker.is_sleeping)
    n = len(loads)
    await collect(worker.submit([request(prompt(10), 3)]))
    await worker.call(lambda engine: None)
    assert len(loads) > n and worker.counters().tokens_predicted == 6
    assert await worker.stop()
