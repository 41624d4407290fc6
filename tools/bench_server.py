"""A server under measurement: ours or llama-server, started with the same flags.

Both are told to take a free port and are stopped as a user would stop them. What a server says goes
to a file that is shown if it does not start.
"""

import http.client
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from gguf_hybrid.errors import BackendError

OURS = (sys.executable, "-m", "gguf_hybrid.server")
START_SECONDS = 300.0
STOP_SECONDS = 20.0
HOST = "127.0.0.1"


class ServerUnderTest:
    """``with ServerUnderTest("ours", OURS, flags) as server`` answers requests on ``port``."""

    def __init__(self, name: str, program: Sequence[str], flags: Sequence[str]) -> None:
        self.name = name
        self.port = _free_port()
        self.command = [*program, *flags, "--host", HOST, "--port", str(self.port)]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when the server is stopped

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        print(f"{self.name}: {shlex.join(self.command)}", flush=True)
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        try:
            self._await_health()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def check_alive(self) -> None:
        """BackendError with its last words if the process has ended."""
        if self._process.poll() is not None:
            raise BackendError(
                f"{self.name} ended with code {self._process.returncode}: {self._last_words()}"
            )

    def _await_health(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._is_healthy():
            self.check_alive()
            if time.monotonic() > deadline:
                raise BackendError(f"{self.name} did not get ready in {START_SECONDS:.0f} s")
            time.sleep(0.05)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        return (self._log.read().strip().splitlines() or ["nothing was said"])[-1]

    def _stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
