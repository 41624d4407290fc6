"""Faults put in on purpose: whoever meets one gets an error, everybody else the same tokens."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine_harness import Harness, prompt, request
from support.fake_model import LAYOUT, FakeModel, FakeStore

from gguf_hybrid.engine.request import Done, Failed
from gguf_hybrid.engine.slot_files import SlotFiles
from gguf_hybrid.engine.worker import Worker
from gguf_hybrid.errors import RequestError
from gguf_hybrid.memory.store import StoreSpec
from gguf_hybrid.step import Row

from .test_sequences import check_rows


class Unlucky:
    """Raises, or asks for NaN, at a share ``p`` of its calls."""

    def __init__(self, seed: int, kind: str, p: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.kind = kind
        self.p = p
        self.n_faults = 0

    def __call__(self, row: Row) -> str | None:
        if self.rng.random() >= self.p:
            return None
        self.n_faults += 1
        if self.kind == "nan":
            return "nan"
        raise MemoryError("no memory") if self.kind == "memory" else SystemError("kernel failed")


@pytest.mark.parametrize("kind", ["exception", "memory", "nan"])
@pytest.mark.parametrize("seed", range(4))
def test_failing_rows_end_their_own_requests(seed: int, kind: str) -> None:
    """A row may be tried again in smaller passes, so not each fault ends a request."""
    unlucky = Unlucky(seed, kind, 0.02)
    h = Harness(4, 1024, FakeModel(unlucky, rounds=False), cache_ram_nbytes=1 << 20)
    requests = [request(prompt(20 + 7 * i, i % 5), 12) for i in range(40)]
    ends = h.run(*requests)
    assert unlucky.n_faults > 0 and any(isinstance(end, Done) for end in ends)
    for each, end in zip(requests, ends, strict=True):
        check_rows(each)
        assert isinstance(end, Failed) or len(end.tokens) == 12


class TightStore(FakeStore):
    """Out of memory at every ``period``-th use of one operation."""

    operation = ""
    period = 3

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.n_calls = 0

    def free_block(self, block: int) -> None:
        self.cells.pop(block, None)  # perhaps never written

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "operation"):
            self.n_calls += 1
            if self.n_calls % self.period == 0:
                raise MemoryError(f"{name}: no memory")
        return object.__getattribute__(self, name)


class TightModel(FakeModel):
    def __init__(self, operation: str, period: int = 3) -> None:
        super().__init__(rounds=False)
        self.operation = operation
        self.period = period

    def new_store(self, spec: StoreSpec) -> FakeStore:
        store = TightStore(spec)
        store.operation = self.operation
        store.period = self.period
        return store


@pytest.mark.parametrize(
    "operation", ["snapshot_state", "restore_state", "copy_state", "copy_block"]
)
def test_a_store_without_memory_costs_no_more_than_requests(operation: str) -> None:
    """Checkpoints, restored and copied prompts: what cannot be kept is read again."""
    h = Harness(3, 1024, TightModel(operation), cache_ram_nbytes=1 << 20)
    talk = prompt(300)
    for i in range(8):
        pair = [request(talk, 3) for _ in range(2)]
        h.engine.submit(pair)
        other = request(prompt(70, i), 3)
        h.engine.submit([other])
        ends = h.finish([*pair, other])
        for each in (*pair, other):
            check_rows(each)
        assert all(isinstance(end, Done | Failed) for end in ends)
        talk += prompt(5, i)


@pytest.mark.parametrize("operation", ["write_block", "load_state", "snapshot_state"])
@pytest.mark.parametrize("period", [1, 2, 3])
def test_a_file_for_which_there_is_no_memory_is_refused(operation: str, period: int) -> None:
    """The slot is empty then, and works."""
    talk = prompt(600)
    source = Harness(1, 1024, FakeModel(rounds=False), cache_ram_nbytes=1 << 20)
    source.run(request(talk, 2, boundaries=(100, 300)))
    saved = source.engine.save_slot(0)
    h = Harness(2, 1024, TightModel(operation, period), cache_ram_nbytes=1 << 20)
    for _ in range(4):
        loaded = h.engine.load_slot(0, saved)
        h.engine.contents.check()
        assert len(h.engine.slots[0].tokens) == (len(saved.tokens) if loaded else 0)
        again = request(talk, 2, id_slot=0)
        (end,) = h.run(again)
        assert isinstance(end, Done)
        check_rows(again)


@pytest.mark.parametrize("call", ["fsync", "replace"])
async def test_a_full_disk_leaves_file_and_slot_as_they_were(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    worker = Worker(lambda stopping: Harness(1, model=FakeModel(rounds=False)).engine)
    worker.start()
    files = SlotFiles(tmp_path, LAYOUT, worker)
    each = request(prompt(50), 4)
    async for _ in worker.submit([each]).events():
        pass
    await files.save(0, "a.bin")
    before = (tmp_path / "a.bin").read_bytes()
    monkeypatch.setattr(os, call, full)
    with pytest.raises(RequestError, match="No space left on device") as refusal:
        await files.save(0, "a.bin")
    monkeypatch.undo()
    assert refusal.value.status == 500
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == before
    assert (await files.restore(0, "a.bin")).n_tokens == 53
    assert await worker.stop()
