"""Real servers for recorded cases, and the one assertion made on each case."""

from pathlib import Path

import pytest

from .comparison import Comparison
from .goldens import Case, masked_paths
from .replay import replay
from .server_process import ServerProcess


class Servers:
    """One running server at a time: cases come sorted by what they need."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._n_started = 0
        self._group: tuple[str, ...] = ()
        self._server: ServerProcess | None = None

    def for_case(self, case: Case) -> ServerProcess:
        """A server with the case's flags, in the state the case wants."""
        if self._server is None or self._group != case.group:
            self.stop()
            self._n_started += 1
            folder = self._folder / str(self._n_started)
            folder.mkdir()
            self._group = case.group
            self._server = ServerProcess(
                case.flags(folder),
                folder / "log",
                case.record.get("env"),
                case.record.get("health") or "/health",
                wait=case.name != "while_loading",
            ).__enter__()
        return self._server

    def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            assert server.stop() == 0


def check_golden(case: Case, servers: Servers) -> None:
    """The case's answers are the recorded ones, but for what ``deviations.json`` names."""
    masked = masked_paths(case)
    if "*" in masked:
        pytest.skip("listed in deviations.json as a whole")
    answers = replay(servers.for_case(case), case.record["steps"])
    differences = Comparison(case.record, masked).differences(answers)
    assert not differences, "\n".join(["answers differ:", *differences[:20]])
