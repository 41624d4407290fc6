"""Bodies the request fuzzer found to be taken for an error of the server's own."""

from pathlib import Path

import pytest
from server.server_process import ServerProcess  # noqa: TID251 (tests/server)

from .requests_wire import Message, exchange

COMPLETION, CHAT = "/completion", "/v1/chat/completions"
PART = '{"messages": [{"role": "user", "content": [{"type": %s}]}]}'
HUGE = "1" + "0" * 400
FOUND = [
    (COMPLETION, '{"prompt": "a", "n_predict": 1, "lora": [{"id": 0, "scale": []}]}', 400),
    (COMPLETION, '{"prompt": "a", "n_predict": 1, "lora": [{"id": 0, "scale": "x"}]}', 400),
    (COMPLETION, '{"prompt": "a", "n_predict": 1, "lora": [{"id": 0, "scale": 1e400}]}', 400),
    (COMPLETION, '{"prompt": "a", "n_predict": 1, "lora": [{"id": 0, "scale": null}]}', 400),
    (COMPLETION, f'{{"prompt": "a", "n_predict": 1, "logit_bias": [[5, {HUGE}]]}}', 400),
    (COMPLETION, f'{{"prompt": "a", "n_predict": 1, "seed": {HUGE}}}', 400),
    (COMPLETION, '{"prompt": "a", "n_predict": 1, "seed": 1000000000000000000000}', 200),
    (COMPLETION, '{"prompt": "a", "n_predict": 1, "logit_bias": {"+-5": 1}}', 200),
    (COMPLETION, f'{{"prompt": "a", "n_predict": 1, "logit_bias": {{"{"1" * 5000}": 1}}}}', 200),
    (COMPLETION, '{"prompt": "a", "n_predict": 1, "grammar": "root ::= root"}', 400),
    (COMPLETION, '{"prompt": "a", "n_predict": 1, "grammar": "root ::= x x\\nx ::= root"}', 400),
    (COMPLETION, '{"prompt": "a", "n_predict": 1, "grammar": "root ::= \\"a\\" root"}', 200),
    (CHAT, PART % "[]", 400),
    (CHAT, PART % "{}", 400),
    (f"/slots/{'9' * 5000}?action=erase", "", 400),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    folder: Path = tmp_path_factory.mktemp("found")
    flags = ["--demo", "-np", "1", "-c", "512", "--slot-save-path", str(folder)]
    with ServerProcess(flags, folder / "log") as server:
        yield server


@pytest.mark.parametrize("path, body, status", FOUND)
def test_found_body(server: ServerProcess, path: str, body: str, status: int) -> None:
    reply = exchange(server.port, Message("POST", path, body.encode()).plain())
    assert reply.status == status, reply.body
    assert "Traceback" not in server.log.read_text()


BROKEN = [
    b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    Message("POST", "/tokenize", b"{}").head("Content-Length: 2", "Content-Encoding: gzip") + b"{}",
    Message("GET", "/props", b"").head("Content-Length: 2", "Content-Encoding: gzip") + b"{}",
]


@pytest.mark.parametrize("raw", BROKEN)
def test_broken_http_is_a_400_and_no_error_of_ours(server: ServerProcess, raw: bytes) -> None:
    assert exchange(server.port, raw).status == 400
    assert "Traceback" not in server.log.read_text()
