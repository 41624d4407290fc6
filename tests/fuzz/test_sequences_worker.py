"""The same on the demo model, through the engine thread: clients stream, leave, save and restore.

Each client keeps a conversation and compares every logit with a model that runs it alone. Seeds
are fixed; which step follows which is the scheduler's choice, and must not matter.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.test_real_model import Bench, ask, model_of, rows_of, text_prompt

from gguf_hybrid.engine.engine import Engine
from gguf_hybrid.engine.request import Done, Request, Token
from gguf_hybrid.engine.slot_files import SlotFiles
from gguf_hybrid.engine.worker import Worker
from gguf_hybrid.errors import RequestError

N_SLOTS = 3
N_CLIENTS = 6


class Client:
    """One conversation; its next step follows from its own generator."""

    def __init__(self, seed: int, worker: Worker, files: SlotFiles) -> None:
        self.rng = np.random.default_rng(seed)
        self.worker = worker
        self.files = files
        self.talk = text_prompt(seed, 20)
        self.seen: list[Request] = []

    def pick(self, n: int) -> int:
        return int(self.rng.integers(n))

    async def run(self, n_steps: int) -> None:
        steps: tuple[Callable[[], Any], ...] = (self.turn, self.turn, self.leave, self.slot_action)
        for _ in range(n_steps):
            await steps[self.pick(len(steps))]()

    def request(self, n_predict: int) -> Request:
        if len(self.talk) > 400:
            self.talk = self.talk[:30]
        self.talk += text_prompt(self.pick(8), 1 + self.pick(60))
        each = ask(self.talk, n_predict, cache_prompt=self.pick(4) > 0)
        self.seen.append(each)
        return each

    async def turn(self) -> None:
        each = self.request(1 + self.pick(8))
        events = [event async for event in self.worker.submit([each]).events()]
        end = events[-1]
        assert isinstance(end, Done) and len(end.tokens) == each.n_predict
        self.talk += end.tokens

    async def leave(self) -> None:
        """After some tokens, or before the first."""
        task = self.worker.submit([self.request(-1)])
        n_tokens = self.pick(4)
        async for event in task.events():
            n_tokens -= isinstance(event, Token)
            if n_tokens < 0 or self.pick(8) == 0:
                break
        task.cancel()

    async def slot_action(self) -> None:
        slot, name = self.pick(N_SLOTS), f"{self.pick(4)}.bin"
        match self.pick(4):
            case 0 | 1:
                await self._save(slot, name)
            case 2:
                if (self.files.path_of(name)).exists():
                    await self.files.restore(slot, name)
            case 3:
                await self.files.erase(slot)

    async def _save(self, slot: int, name: str) -> None:
        """An empty slot is refused and writes nothing."""
        before = self.files.path_of(name).exists()
        try:
            await self.files.save(slot, name)
        except RequestError as error:
            assert str(error) == "Unable to save slot: it is empty"
            assert self.files.path_of(name).exists() or not before


def check_alone(each: Request) -> None:
    """As far as a request got, its logits are those of a fresh engine with nobody else."""
    rows = each.sampler.rows  # type: ignore[attr-defined]
    if rows:
        again = ask(each.prompt, len(rows))
        Bench(model_of("cpu"), 1).run(again)
        assert (np.stack(rows) == rows_of(again)).all(), f"request {each.id} differs"


@pytest.mark.parametrize(
    "seed, n_steps", [(0, 12), *[pytest.param(s, 60, marks=pytest.mark.full) for s in range(1, 5)]]
)
async def test_conversations_are_those_of_a_model_alone(
    seed: int, n_steps: int, tmp_path: Path
) -> None:
    budget = 4 << 20

    def load(stopping: Callable[[], bool]) -> Engine:
        return Bench(model_of("cpu"), N_SLOTS, cache_ram_nbytes=budget, n_ubatch=128).engine

    worker = Worker(load)
    worker.start()
    await worker.ready()
    files = SlotFiles(tmp_path, Bench(model_of("cpu"), 1).layout, worker)
    clients = [Client(100 * seed + i, worker, files) for i in range(N_CLIENTS)]
    await asyncio.gather(*[client.run(n_steps) for client in clients])
    await worker.call(lambda engine: engine.contents.check())
    assert worker.cache().n_bytes <= budget and worker.failure is None
    assert await worker.stop()
    for client in clients:
        for each in client.seen:
            check_alone(each)
    with pytest.raises(RequestError):
        files.path_of("../0.bin")
