"""A server under test: the installed executable, a free port, its log kept for failures."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

EXECUTABLE = Path(sys.executable).parent / "gguf-hybrid-server"
START_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without anything that configures a server."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_", "HF_"))}
    return {**kept, "XDG_CONFIG_HOME": "/nonexistent", **extra}


class ServerProcess:
    """``with ServerProcess(flags) as server`` is ready to answer."""

    def __init__(
        self,
        flags: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        health: str = "/health",
        wait: bool = True,
    ) -> None:
        self.port = free_port()
        self.log = log
        self._wait = wait
        self._health = health
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [str(EXECUTABLE), *flags, "--port", str(self.port)],
                env=clean_environment(**(environment or {})),
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
            )

    def __enter__(self) -> "ServerProcess":
        try:
            self._await(self._is_ready if self._wait else self._is_listening)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Terminate as a user would; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def _await(self, ready: "object") -> None:
        assert callable(ready)
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if self.process.poll() is not None:
                raise AssertionError(f"the server exited: {self.log.read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no answer: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        return self._status(self._health) == 200

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _status(self, path: str) -> int | None:
        connection = self.connect()
        try:
            connection.request("GET", path)
            with connection.getresponse() as response:
                return response.status
        except OSError:
            return None
        finally:
            connection.close()
