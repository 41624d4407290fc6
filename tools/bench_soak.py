"""``gguf-hybrid bench soak``: mixed clients for some minutes, against one server it starts.

Some clients talk on, edit what they said and go back; some stream short completions; some hang up
in the middle; some ask for a whole answer. Beside them runs a fixed set of requests whose answers
were taken when nobody else was there and must stay the same. Ends with code 1 if one does not, if a
request fails, or if memory still grows after the caches have filled.
"""

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from gguf_hybrid.errors import RequestError

from .bench_arguments import add_model_arguments, n_threads
from .bench_client import Body, Client, Stream, text_of, together
from .bench_conversation import WORDS
from .bench_memory import anonymous_nbytes
from .bench_report import percentile, print_json
from .bench_server import OURS, ServerUnderTest

N_SENTINELS = 4
N_CTX_PER_SLOT = 4096
SAMPLE_SECONDS = 1.0
MIB = 1 << 20


@dataclass(slots=True)
class Log:
    """What all clients saw; every method may be called from any thread."""

    n_tokens: int = 0
    n_requests: int = 0
    n_cancelled: int = 0
    n_checked: int = 0
    errors: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, stream: Stream, *, cancelled: bool = False) -> None:
        with self._lock:
            self.n_requests += 1
            self.n_cancelled += cancelled
            self.n_tokens += len(stream.events)
            self.gaps.append(stream.longest_gap)
            if stream.arrivals:
                self.waits.append(stream.ttft)
            if not cancelled:
                self.seconds.append(stream.seconds)

    def note_error(self, error: Exception) -> None:
        with self._lock:
            self.errors.append(f"{type(error).__name__}: {error}")

    def note_check(self, name: str, expected: str, answer: str) -> None:
        with self._lock:
            self.n_checked += 1
            if answer != expected:
                self.differences.append(f"{name}: {answer!r} instead of {expected!r}")


class Mixed:
    """The kinds of clients. Each call makes one request; ``rng`` belongs to the calling thread."""

    def __init__(self, client: Client, log: Log, solo: Sequence[tuple[Body, str]]) -> None:
        self.client = client
        self.log = log
        self.solo = solo

    def extend(self, rng: np.random.Generator, history: list[str]) -> None:
        """Go on with a conversation; now and then edit its middle or go back."""
        if len(history) > 12:
            history.clear()
        if len(history) > 2 and rng.random() < 0.3:
            history[int(rng.integers(len(history)))] = _words(rng, 40)
        elif len(history) > 2 and rng.random() < 0.2:
            del history[int(rng.integers(1, len(history))) :]
        history.append(_words(rng, 60))
        stream = self.client.stream("/completion", _body("\n".join(history), 24, temperature=0.8))
        history.append("".join(map(text_of, stream.events)))
        self.log.note(stream)

    def complete(self, rng: np.random.Generator, history: list[str]) -> None:
        prompt = _words(rng, int(rng.integers(1, 200)))
        self.log.note(self.client.stream("/completion", _body(prompt, 32, temperature=1.0)))

    def hang_up(self, rng: np.random.Generator, history: list[str]) -> None:
        """Leave a long answer after a few events, or while the prompt is being read."""
        n_events = int(rng.integers(0, 8))
        body = _body(_words(rng, int(rng.integers(50, 1500))), 400)
        self.log.note(self.client.stream("/completion", body, n_events), cancelled=True)

    def check(self, rng: np.random.Generator, history: list[str]) -> None:
        """A request whose answer is known."""
        number = int(rng.integers(len(self.solo)))
        body, expected = self.solo[number]
        answer = self.client.post("/completion", body)["content"]
        self.log.note_check(f"request {number}", expected, answer)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long")
    parser.add_argument("--clients", type=int, default=8, help="how many at once")
    parser.add_argument("-np", "--parallel", type=int, default=4, help="slots of the server")
    parser.add_argument("-cram", "--cache-ram", type=int, default=32, help="MiB, small: to fill it")
    parser.add_argument("--growth", type=float, default=16.0, help="MiB that memory may grow late")


def run(args: argparse.Namespace) -> int:
    log = Log()
    flags = ["-m", args.model, "-np", str(args.parallel), "--arithmetic", args.arithmetic]
    flags += ["-c", str(N_CTX_PER_SLOT * args.parallel), "--cache-ram", str(args.cache_ram)]
    flags += ["-t", str(n_threads(args))]
    with ServerUnderTest("ours", OURS, flags) as server:
        _soak(args, server, log)
    return _report(args, log)


def _soak(args: argparse.Namespace, server: ServerUnderTest, log: Log) -> None:
    client = Client(server.port)
    mixed = Mixed(client, log, [_solo(client, number) for number in range(N_SENTINELS)])
    kinds = (mixed.extend, mixed.check, mixed.complete, mixed.hang_up)
    end = time.monotonic() + 60 * args.minutes
    clients = [
        partial(_repeat, kinds[i % len(kinds)], np.random.default_rng(i), end, log)
        for i in range(args.clients)
    ]
    together([partial(_watch, server, end, log), *clients])


def _watch(server: ServerUnderTest, end: float, log: Log) -> None:
    """Note the server's memory until the end; BackendError if it dies."""
    while time.monotonic() < end:
        server.check_alive()
        taken = anonymous_nbytes(server.pid)
        if taken is not None:
            log.memory.append((time.monotonic(), taken))
        time.sleep(SAMPLE_SECONDS)


def _repeat(
    request: Callable[[np.random.Generator, list[str]], None],
    rng: np.random.Generator,
    end: float,
    log: Log,
) -> None:
    history: list[str] = []
    while time.monotonic() < end:
        try:
            request(rng, history)
        except (RequestError, OSError, ValueError) as error:
            log.note_error(error)
            history.clear()


def _solo(client: Client, number: int) -> tuple[Body, str]:
    """A request with a seed of its own, and its answer while nobody else is there."""
    rng = np.random.default_rng(1000 + number)
    temperature = 0.0 if number % 2 == 0 else 0.9
    body = _body(_words(rng, 20 + 150 * number), 24, temperature=temperature, seed=number)
    return body, client.post("/completion", body)["content"]


def _body(prompt: str, n_predict: int, **fields: object) -> Body:
    return {"prompt": prompt, "n_predict": n_predict, **fields}


def _words(rng: np.random.Generator, n: int) -> str:
    return " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), n))


def late_growth(memory: Sequence[tuple[float, int]]) -> float:
    """Bytes by which the second half of the samples grows, by the line that fits it best."""
    late = np.array(memory[len(memory) // 2 :], np.float64)
    if len(late) < 3:
        return 0.0
    slope = np.polyfit(late[:, 0] - late[0, 0], late[:, 1], 1)[0]
    return float(slope * (late[-1, 0] - late[0, 0]))


def _report(args: argparse.Namespace, log: Log) -> int:
    growth = late_growth(log.memory)
    result = {
        "bench": "soak",
        "arithmetic": args.arithmetic,
        "minutes": args.minutes,
        "requests": log.n_requests,
        "tokens": log.n_tokens,
        "cancelled": log.n_cancelled,
        "errors": len(log.errors),
        "checked": log.n_checked,
        "different": len(log.differences),
        "ttft_ms": _percentiles(log.waits),
        "request_ms": _percentiles(log.seconds),
        "longest_gap_ms": 1000 * max(log.gaps, default=0.0),
        "memory_mib": max((taken for _, taken in log.memory), default=0) / MIB,
        "late_growth_mib": growth / MIB,
    }
    for line in (*log.errors[:5], *log.differences[:5]):
        print(line)
    for name, value in result.items():
        print(f"{name:16} {value}")
    print_json(result)
    return int(bool(log.errors or log.differences) or growth > args.growth * MIB)


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"p{100 * share:.0f}": 1000 * percentile(seconds, share) for share in (0.5, 0.9, 0.99)}
