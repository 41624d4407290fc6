"""llama-server's recorded answers on its native routes, replayed on a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .comparison import Comparison
from .goldens import Case, cases, known_cases, masked_paths
from .replay import replay
from .server_process import ServerProcess

TOPICS = (
    "api_key",
    "api_prefix",
    "apply_template",
    "cache",
    "completion",
    "completion_errors",
    "concurrency",
    "cors",
    "grammar",
    "health",
    "logit_bias",
    "lora",
    "metrics",
    "models",
    "moe",
    "n_choices",
    "not_found",
    "output_options",
    "probabilities",
    "prompt_forms",
    "props",
    "rerank",
    "sampling",
    "slot_files",
    "slots",
    "stop",
    "tokenize",
)
CASES = cases(*TOPICS)


class Servers:
    """One running server at a time: cases come sorted by what they need."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._n_started = 0
        self._group: tuple[str, ...] = ()
        self._server: ServerProcess | None = None

    def for_case(self, case: Case) -> ServerProcess:
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


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    running = Servers(tmp_path_factory.mktemp("servers"))
    yield running
    running.stop()


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_native_golden(case: Case, servers: Servers) -> None:
    server = servers.for_case(case)
    masked = masked_paths(case)
    if masked == ["*"]:
        pytest.skip("listed in deviations.json as a whole")
    answers = replay(server, case.record["steps"])
    differences = Comparison(case.record, masked).differences(answers)
    assert not differences, "\n".join(["answers differ:", *differences[:20]])


def test_deviations_name_cases_that_exist() -> None:
    all_topics = {topic for topic, _ in known_cases()}
    recorded = {(case.topic, case.name) for case in cases(*sorted(all_topics))}
    assert known_cases() <= recorded
