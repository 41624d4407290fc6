"""Faults around a whole process: a log that nobody reads, and signals in the middle of a step."""

import contextlib
import http.client
import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from server.server_process import (  # noqa: TID251 (tests/server)
    EXECUTABLE,
    clean_environment,
    free_port,
)

LIMIT_SECONDS = 2.0


class Server:
    """A server whose log goes into a pipe that is not read."""

    def __init__(self, flags: Sequence[str]) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [str(EXECUTABLE), "--demo", "--port", str(self.port), *flags],
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def status(self, path: str, body: object = None) -> int:
        connection = self.connect()
        with contextlib.closing(connection):
            connection.request(
                "GET" if body is None else "POST", path, body and json.dumps(body).encode()
            )
            with connection.getresponse() as response:
                response.read()
                return response.status

    def is_ready(self) -> bool:
        try:
            return self.status("/health") == 200
        except OSError:
            return False


@contextmanager
def running(*flags: str) -> Iterator[Server]:
    server = Server(flags)
    try:
        while not server.is_ready():
            assert server.process.poll() is None
            time.sleep(0.02)
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def test_a_log_that_nobody_reads_stops_nobody() -> None:
    """More than a pipe holds, and the lines that were dropped are counted when it is read."""
    with running("-c", "512", "-v") as server:
        for _ in range(500):
            assert server.status("/completion", {"prompt": "a" * 20, "n_predict": 1}) == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LIMIT_SECONDS) == 0


@pytest.mark.parametrize("n_prompt, n_predict", [(1, -1), (30_000, 1)], ids=["step", "prompt"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_the_middle(
    number: signal.Signals, n_prompt: int, n_predict: int
) -> None:
    """Exit code 0 within two seconds, whatever is being computed."""
    with running("-c", "32768", "-np", "1") as server:
        connection = server.connect()
        body = {"prompt": [5] * n_prompt, "n_predict": n_predict, "ignore_eos": True}
        connection.request("POST", "/completion", json.dumps(body))
        time.sleep(0.3)
        assert server.process.poll() is None
        server.process.send_signal(number)
        assert server.process.wait(LIMIT_SECONDS) == 0
        connection.close()


def test_a_log_file_that_cannot_be_written_is_one_line() -> None:
    result = subprocess.run(
        [str(EXECUTABLE), "--demo", "--log-file", "/nonexistent/log"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr == "error: --log-file /nonexistent/log: No such file or directory\n"
