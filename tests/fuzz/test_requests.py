"""Hostile and broken clients against a real server, with an honest one beside them.

Whatever is sent: the server lives, answers what is HTTP with JSON and a status that the contract
lists, writes no traceback, keeps its memory, and the honest client's answer never changes. Seeds
are fixed; a failure names seed and number of the request.
"""

import contextlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gguf_hybrid.server.app import all_routes
from server.server_process import ServerProcess  # noqa: TID251 (tests/server)

from .requests_bodies import VALID, BodyMaker
from .requests_wire import TIMEOUT, Message, Reply, bad_heads, connect, exchange, parse

N_CLIENTS = 6
GROWTH_NBYTES = 320 << 20  # six bodies of a megabyte, parsed, and what the allocator keeps
FLAGS = [
    "--demo",
    "-np",
    "4",
    "-c",
    "1024",
    "-n",
    "24",
    "--metrics",
    "--props",
    "--cache-ram",
    "16",
]
HONEST = {
    "prompt": "Once upon a time there was a small cat who lived in",
    "n_predict": 24,
    "temperature": 0,
    "n_probs": 3,
    "return_tokens": True,
    "cache_prompt": False,
}
ROUTES = [(route.method, path) for route in all_routes() for path in route.paths]
WITH_BODIES = [("POST", path) for path in VALID]

LISTED = (400, 401, 403, 404, 408, 413, 500, 501, 503)
# The failures of a chat that llama-server answers with 500 (contract, 3.4).
LISTED_500 = re.compile(
    r"requires --jinja flag|Cannot use both json_schema|'messages' is required|"
    r"Failed to parse|Unknown reasoning format|not supported - hint|"
    r"Context size has been exceeded|outside the vocabulary|does not match the expected"
)


class Honest:
    """A client that asks the same again and again, and keeps the different answers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.alone = self.answer()
        self.n_answers = 0
        self.different: list[object] = []

    def answer(self) -> object:
        raw = json.dumps(HONEST).encode()
        reply = exchange(self._port, Message("POST", "/completion", raw).plain())
        whole = reply.json
        assert reply.status == 200 and isinstance(whole, dict), reply
        return [whole[key] for key in ("content", "tokens", "completion_probabilities")]

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                answer = self.answer()
            except Exception as error:
                answer = repr(error)
            self.n_answers += 1
            if answer != self.alone:
                self.different.append(answer)

    def __enter__(self) -> "Honest":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("requests")
    (folder / "slots").mkdir()
    flags = [*FLAGS, "--slot-save-path", str(folder / "slots")]
    one_arena = {"MALLOC_ARENA_MAX": "1"}  # memory per thread of the C library is not the question
    with ServerProcess(flags, folder / "log", one_arena) as server:
        yield server


@pytest.fixture(autouse=True)
def sound(server: ServerProcess) -> Iterator[None]:
    """The laws that hold around every test of this module."""
    honest = Honest(server.port)
    with honest:
        yield
    assert honest.n_answers > 0 and not honest.different
    assert honest.answer() == honest.alone
    assert server.process.poll() is None
    assert "Traceback" not in server.log.read_text()


def resident_nbytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found
    return 1024 * int(found[1])


def address(rng: random.Random, path: str) -> str:
    """``path`` with what a client may put in: slot ids, actions, queries."""
    path = path.replace("{id}", rng.choice(("0", "3", "-1", "99", "x", "1e5", "9" * 30, "%30")))
    action = rng.choice(("save", "restore", "erase", "erase", "burn", ""))
    query = rng.choice(("", "", f"?action={action}", "?fail_on_no_slot=1", "?a=%ff&a", "?=&&;"))
    return path + (f"?action={action}" if "/slots/" in path else query)


def complaint(message: Message, reply: Reply) -> str | None:
    """What is wrong with the answer to a request that was proper HTTP."""
    if reply.status is None:
        return "no answer"
    if reply.status >= 400 and message.method != "HEAD":
        error = reply.json
        assert isinstance(error, dict)
        if set(error["error"]) < {"code", "message", "type"} and "error" not in error:
            return f"no error object: {error}"
        text = json.dumps(error)
        if reply.status == 500 and not LISTED_500.search(text):
            return f"unlisted: {text[:300]}"
        if reply.status not in LISTED:
            return f"status {reply.status}: {text[:300]}"
    return None


def one_message(port: int, seed: str) -> str | None:
    """Send the request of ``seed``; what was wrong with the answer."""
    rng = random.Random(seed)
    method, path = rng.choice(ROUTES if rng.random() < 0.2 else WITH_BODIES)
    if rng.random() < 0.05:
        method = rng.choice(("PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"))
    body = b"" if method in ("GET", "HEAD") else BodyMaker(rng).body(path)
    message = Message(method, address(rng, path), body)
    raw = message.chunked(rng) if rng.random() < 0.2 else message.plain()
    try:
        wrong = complaint(message, exchange(port, raw, half_close=False))
    except Exception as error:
        wrong = repr(error)
    return wrong and f"seed {seed}: {method} {message.path} {body[:300]!r}: {wrong}"


def send_all(port: int, seeds: list[str]) -> list[str]:
    with ThreadPoolExecutor(N_CLIENTS) as clients:
        return [wrong for wrong in clients.map(lambda s: one_message(port, s), seeds) if wrong]


@pytest.mark.parametrize(
    "seed, n",
    [(0, 900), pytest.param(1, 30_000, marks=[pytest.mark.full, pytest.mark.timeout(3000)])],
)
def test_any_body_on_any_route(server: ServerProcess, seed: int, n: int) -> None:
    send_all(server.port, [f"warm-{i}" for i in range(100)])
    before = resident_nbytes(server)
    wrong = send_all(server.port, [f"{seed}-{i}" for i in range(n)])
    assert not wrong, "\n".join(wrong[:20])
    assert resident_nbytes(server) - before < GROWTH_NBYTES


def one_bad_head(port: int, seed: str) -> str | None:
    rng = random.Random(seed)
    method, path = rng.choice(ROUTES)
    message = Message(method, address(rng, path), BodyMaker(rng).body(path))
    raw = bad_heads(message, rng)
    try:
        reply = exchange(port, raw, half_close=True)
    except Exception as error:
        return f"seed {seed}: {raw[:200]!r}: {error!r}"
    if reply.status is None or reply.status < 500 or reply.status in (501, 503):
        return None
    return (
        None if LISTED_500.search(reply.body.decode()) else f"seed {seed}: {raw[:200]!r}: {reply}"
    )


@pytest.mark.parametrize(
    "seed, n",
    [(0, 250), pytest.param(1, 5_000, marks=[pytest.mark.full, pytest.mark.timeout(3000)])],
)
def test_any_head(server: ServerProcess, seed: int, n: int) -> None:
    with ThreadPoolExecutor(N_CLIENTS) as clients:
        seeds = [f"{seed}-{i}" for i in range(n)]
        wrong = [w for w in clients.map(lambda s: one_bad_head(server.port, s), seeds) if w]
    assert not wrong, "\n".join(wrong[:20])


def honest_bytes(**fields: object) -> bytes:
    body = json.dumps(HONEST | fields).encode()
    return Message("POST", "/completion", body).plain()


def busy_slots(port: int) -> int:
    slots = exchange(port, Message("GET", "/slots", b"").plain()).json
    assert isinstance(slots, list)
    return sum(slot["is_processing"] for slot in slots)


def test_two_hundred_at_once(server: ServerProcess) -> None:
    """All connect before anybody sends; all are answered, with the same."""
    links = [connect(server.port) for _ in range(200)]
    with contextlib.ExitStack() as stack:
        for link in links:
            stack.enter_context(link)
        for link in links:
            link.sendall(honest_bytes(n_predict=4))
        contents = set()
        for link in links:
            reply = parse(b"".join(iter(lambda link=link: link.recv(1 << 16), b"")))
            assert reply.status == 200 and isinstance(reply.json, dict)
            contents.add(reply.json["content"])
    assert len(contents) == 1


def test_clients_that_stop_in_the_middle(server: ServerProcess) -> None:
    """They leave at every stage: silent, half a head, half a body, half an answer, reset."""
    raw = honest_bytes(stream=True, n_predict=200)
    for at in (0, 1, 20, len(raw) - 40, len(raw) - 1, len(raw)):
        for reset in (False, True):
            link = connect(server.port)
            if reset:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            link.sendall(raw[:at])
            if at == len(raw):
                assert link.recv(10)
            link.close()


def test_slow_writers_and_readers_hold_up_nobody(server: ServerProcess) -> None:
    """Twenty that write a byte now and then, twenty that never read: the honest one goes on."""
    raw = honest_bytes(stream=True, n_predict=200)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(server.port)) for _ in range(20)]
        deaf = [stack.enter_context(connect(server.port, receive_buffer=1024)) for _ in range(20)]
        for link in deaf:
            link.sendall(raw)
        for i in range(30):
            for link in slow:
                link.sendall(raw[i : i + 1])
            time.sleep(0.02)
        health = exchange(server.port, Message("GET", "/health", b"").plain())
        assert health.status == 200
        for link in slow:
            link.sendall(raw[30:])
            assert b" 200 " in link.recv(64)
    assert TIMEOUT > 0
