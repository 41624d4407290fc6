"""Slot files: what is restored is what was saved, and nothing bad comes in."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.engine_harness import Harness, prompt, request, same_rows
from support.fake_model import LAYOUT, FakeModel

from gguf_hybrid.engine.request import Done
from gguf_hybrid.engine.slot_files import SlotFiles
from gguf_hybrid.engine.worker import Worker
from gguf_hybrid.errors import RequestError


class Server:
    """A worker with files; ``n`` counts tokens read for a prompt, compared with a cold answer."""

    def __init__(self, folder: Path, n_ctx: int = 1024) -> None:
        self.worker = Worker(self._load)
        self.files = SlotFiles(folder, LAYOUT, self.worker)
        self.n_ctx = n_ctx

    def _load(self, stopping: object) -> object:
        model = FakeModel(rounds=False)
        return Harness(2, self.n_ctx, model=model, cache_ram_nbytes=1 << 20).engine

    async def ask(self, tokens: tuple[int, ...], id_slot: int, n_predict: int = 5) -> Done:
        each = request(tokens, n_predict, id_slot=id_slot)
        events = [event async for event in self.worker.submit([each]).events()]
        cold = request(tokens, n_predict)
        Harness(1, self.n_ctx, model=FakeModel(rounds=False)).run(cold)
        assert same_rows(each.sampler.rows, cold.sampler.rows)
        assert isinstance(events[-1], Done)
        return events[-1]

    async def stop(self) -> None:
        await self.worker.call(lambda engine: engine.contents.check())
        assert await self.worker.stop()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path)
    server.worker.start()
    yield server
    await server.stop()


@pytest.mark.parametrize("n", [1, 2, 90, 300])
async def test_restored_in_another_server(server: Server, tmp_path: Path, n: int) -> None:
    first = await server.ask(prompt(n), 0)
    report = await server.files.save(0, "a.bin")
    assert (report.n_tokens, report.n_bytes) == (n + 4, (tmp_path / "a.bin").stat().st_size)
    other = Server(tmp_path)
    other.worker.start()
    await other.ask(prompt(200, 5), 1)
    assert (await other.files.restore(1, "a.bin")).n_tokens == n + 4
    assert (await other.ask(prompt(n), 1)).timings.prompt_n == 1
    await other.files.restore(0, "a.bin")
    talk = prompt(n) + first.tokens + prompt(7, 3)
    assert (await other.ask(talk, 0)).timings.prompt_n == len(talk) - (n + 4)
    await other.ask(prompt(100, 6), 0)
    await other.files.restore(0, "a.bin")
    assert (await other.ask(talk, 0)).timings.prompt_n <= 8
    await other.stop()


async def test_save_waits_for_a_busy_slot(server: Server) -> None:
    task = server.worker.submit([request(prompt(10), -1, id_slot=0)])
    await anext(task.events())
    save = asyncio.create_task(server.files.save(0, "a.bin"))
    assert await server.files.erase(1) == 0, "an idle slot is not waited for"
    assert not save.done()
    task.cancel()
    assert (await save).n_tokens > 0


async def test_erase_forgets(server: Server) -> None:
    await server.ask(prompt(50), 0)
    assert await server.files.erase(0) == 54 and await server.files.erase(0) == 0
    assert (await server.ask(prompt(50), 0)).timings.cache_n == 0


async def test_bad_file_leaves_the_slot_alone(server: Server, tmp_path: Path) -> None:
    first = await server.ask(prompt(50), 0)
    await server.files.save(0, "good.bin")
    good = (tmp_path / "good.bin").read_bytes()
    foreign = SlotFiles(tmp_path, replace(LAYOUT, fingerprint="other"), server.worker)
    await foreign.save(0, "foreign.bin")
    contents = {
        "empty.bin": b"",
        "text.bin": b"this is not a slot file",
        "short.bin": good[:-1],
        "long.bin": good + b"x",
        "flipped.bin": good[:700] + bytes([good[700] ^ 4]) + good[701:],
    }
    for name, raw in contents.items():
        (tmp_path / name).write_bytes(raw)
    os.symlink(tmp_path / "good.bin", tmp_path / "link.bin")
    os.mkfifo(tmp_path / "pipe.bin")
    os.mkdir(tmp_path / "folder.bin")
    for name in (*contents, "foreign.bin", "missing.bin", "link.bin", "pipe.bin", "folder.bin"):
        with pytest.raises(RequestError, match="Unable to restore slot") as failure:
            await server.files.restore(0, name)
        assert failure.value.status == 400
    talk = prompt(50) + first.tokens + prompt(3, 1)
    assert (await server.ask(talk, 0)).timings.cache_n == 54


async def test_file_too_long_for_a_slot_is_refused(server: Server, tmp_path: Path) -> None:
    await server.ask(prompt(600), 0)
    await server.files.save(0, "a.bin")
    small = Server(tmp_path, n_ctx=512)
    small.worker.start()
    first = await small.ask(prompt(20), 0)
    with pytest.raises(RequestError, match="Unable to restore slot"):
        await small.files.restore(0, "a.bin")
    assert (await small.ask(prompt(20) + first.tokens + (1,), 0)).timings.cache_n == 24
    await small.stop()


NAMES = ["../x", "a/b", "/etc/x", "..", ".", "", "a\0b", "a\nb", "a:b", "a*b", "x" * 256]
NAMES += ["trail.", "a\\b", " a", "a ", "a\ud800", "a\uff0e", "é" * 128]


@pytest.mark.parametrize("name", NAMES)
async def test_name_that_could_leave_the_folder(server: Server, name: str) -> None:
    for action in (server.files.save, server.files.restore):
        with pytest.raises(RequestError, match="^Invalid filename$"):
            await action(0, name)


@pytest.mark.parametrize("name", ["CON", "a b.bin", "é.bin", ".hidden", "x" * 255])
async def test_good_name(server: Server, tmp_path: Path, name: str) -> None:
    await server.ask(prompt(5), 0)
    await server.files.save(0, name)
    assert [path.name for path in tmp_path.iterdir()] == [name], "no temporary file stays"


async def test_an_empty_slot_is_not_saved(server: Server, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="empty"):
        await server.files.save(0, "a.bin")
    assert list(tmp_path.iterdir()) == []


async def test_saving_over_a_link_replaces_the_link(server: Server, tmp_path: Path) -> None:
    await server.ask(prompt(5), 0)
    outside = tmp_path.parent / "outside.txt"
    outside.write_text("keep")
    os.symlink(outside, tmp_path / "a.bin")
    await server.files.save(0, "a.bin")
    assert outside.read_text() == "keep" and not (tmp_path / "a.bin").is_symlink()
