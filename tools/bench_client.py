"""A client that costs little and notes when things arrive.

It runs beside the server on the same cores, so it does no more than it must: one thread per client,
plain sockets, and of a stream only the last event is read as JSON unless texts are wanted.
"""

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gguf_hybrid.errors import RequestError

from .bench_server import HOST

TIMEOUT_SECONDS = 600.0
DATA = b"data: "
DONE = b"[DONE]"

Body = Mapping[str, Any]
T = TypeVar("T")


@dataclass(slots=True)
class Stream:
    """A streamed answer. Times are seconds of ``time.perf_counter``; ``arrivals`` has one for each
    event with content or tokens (not every token has text), ``events`` every event."""

    began: float
    arrivals: list[float] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    ended: float = 0.0

    @property
    def first(self) -> float:
        """When the first token came."""
        return self.arrivals[0]

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.first - self.began

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def longest_gap(self) -> float:
        """Between two events with content."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0)

    @property
    def timings(self) -> dict[str, Any]:
        """``timings`` of the last event that has them."""
        return next((e["timings"] for e in reversed(self.events) if "timings" in e), {})


class Client:
    """Requests to the server on ``port``. RequestError for answers other than 200."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> Any:
        with self._exchange("GET", path, None) as response:
            return json.load(response)

    def post(self, path: str, body: Body) -> Any:
        with self._exchange("POST", path, body) as response:
            return json.load(response)

    def stream(self, path: str, body: Body, n_events: int | None = None) -> Stream:
        """Read a stream to its end, or hang up after ``n_events``: with 0 of them, as soon as the
        server has begun."""
        stream = Stream(time.perf_counter())
        with self._exchange("POST", path, {**body, "stream": True}) as response:
            for line in response if n_events != 0 else ():
                if not line.startswith(DATA) or line.startswith(DONE, len(DATA)):
                    continue
                now = time.perf_counter()
                event = json.loads(line[len(DATA) :])
                if "error" in event:
                    raise RequestError(str(event["error"]))
                stream.events.append(event)
                if text_of(event) or event.get("tokens"):
                    stream.arrivals.append(now)
                if len(stream.events) == n_events:
                    break
        stream.ended = time.perf_counter()
        return stream

    @contextmanager
    def _exchange(
        self, method: str, path: str, body: Body | None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=TIMEOUT_SECONDS)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                answer = response.read(300).decode(errors="replace")
                raise RequestError(f"{path}: {answer}", status=response.status)
            yield response
        finally:
            connection.close()


def text_of(event: Mapping[str, Any]) -> str:
    """What an event of ``/completion`` or of a chat adds to the answer, thinking included."""
    if "content" in event:
        return str(event["content"])
    delta = event["choices"][0]["delta"] if event.get("choices") else {}
    calls = "".join(json.dumps(call) for call in delta.get("tool_calls") or ())
    return (delta.get("reasoning_content") or "") + (delta.get("content") or "") + calls


def together(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run each job on a thread of its own; their results in order.

    When one fails, or the program is interrupted, the others are not waited for: they end with
    errors as soon as the caller stops the server they talk to.
    """
    pool = ThreadPoolExecutor(len(jobs))
    try:
        return [future.result() for future in [pool.submit(job) for job in jobs]]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
