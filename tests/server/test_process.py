"""The process: recorded command lines and exit codes, signals, loading, and what it prints."""

import json
import signal
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from .goldens import ANY_MODEL, DATA, HTTP, MODELS
from .server_process import EXECUTABLE, ServerProcess, clean_environment

MODEL = MODELS / f"{ANY_MODEL}.gguf"
RECORDED = json.loads((HTTP / "process.json").read_text())["cases"]
# Accepted by the reference, which then listens on another port than it was asked to.
REFUSED_HERE = {"bad_port"}


def run(*arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(EXECUTABLE), *arguments],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def argv(case: Any, folder: Path) -> list[str]:
    (folder / "bad.gguf").write_bytes(b"not a model")
    places = {"{MODEL}": str(MODEL), "{DIR}": str(folder)}
    words: list[str] = case["argv"]
    for place, path in places.items():
        words = [word.replace(place, path) for word in words]
    return words


@pytest.mark.parametrize("case", RECORDED, ids=[case["name"] for case in RECORDED])
def test_recorded_exit_code(case: Any, tmp_path: Path) -> None:
    words = argv(case, tmp_path)
    is_ended_by = {"sigterm": signal.SIGTERM, "sigint": signal.SIGINT}.get(case["name"])
    if is_ended_by or (case["exit_code"] == "keeps running" and case["name"] not in REFUSED_HERE):
        with ServerProcess(words, tmp_path / "log") as server:
            server.process.send_signal(is_ended_by or signal.SIGTERM)
            assert server.process.wait(timeout=5) == 0
        return
    result = run(*words)
    expected = 1 if case["name"] in REFUSED_HERE else case["exit_code"]
    assert result.returncode == expected, result.stderr
    if expected == 1:
        errors = [line for line in result.stderr.splitlines() if not _is_information(line)]
        assert len(errors) == 1, result.stderr


def _is_information(line: str) -> bool:
    return line.split()[1:2] == ["I"]


def test_without_a_model_the_line_names_the_ways_to_give_one() -> None:
    result = run()
    assert result.returncode == 1
    assert all(flag in result.stderr for flag in ("-m", "-hf", "--demo"))
    assert len(result.stderr.splitlines()) == 1


def test_printing_flags_exit_at_once() -> None:
    assert "--ctx-size" in run("--help").stdout
    assert "b11434" in run("--version").stdout
    assert "cpu" in run("--list-devices").stdout


def test_the_demo_model_is_announced_and_the_log_file_holds_it(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with ServerProcess(["--demo", "-c", "512", "--log-file", str(log)], tmp_path / "stderr"):
        pass
    assert "demo" in log.read_text()
    assert "demo" in (tmp_path / "stderr").read_text()


def test_a_request_is_logged_with_its_times(tmp_path: Path) -> None:
    with ServerProcess(["--demo", "-c", "512"], tmp_path / "log") as server:
        connection = server.connect()
        connection.request("POST", "/completion", json.dumps({"prompt": "a", "n_predict": 2}))
        with connection.getresponse() as response:
            assert response.status == 200
        connection.close()
    (line,) = [line for line in (tmp_path / "log").read_text().splitlines() if "eval" in line]
    assert "prompt eval" in line and "/ 2 tokens" in line


def test_a_signal_does_not_wait_for_the_prompt_that_is_being_read(tmp_path: Path) -> None:
    with ServerProcess(["-m", str(MODEL), "-c", "30000", "-np", "1"], tmp_path / "log") as server:
        connection = server.connect()
        connection.request("POST", "/completion", json.dumps({"prompt": [5] * 29000}))
        while not _slots(server)[0]["is_processing"]:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=10) == 0
        connection.close()
    assert "prompt eval" not in (tmp_path / "log").read_text()


def _slots(server: ServerProcess) -> Any:
    connection = server.connect()
    connection.request("GET", "/slots")
    with connection.getresponse() as response:
        slots = json.load(response)
    connection.close()
    return slots


def test_a_unix_socket_and_a_port_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    hosts = f"127.0.0.1,{path}"
    with ServerProcess(["--demo", "-c", "512", "--host", hosts], tmp_path / "log"):
        reply = subprocess.run(
            ["curl", "-s", "--unix-socket", str(path), "http://localhost/health"],
            capture_output=True,
            check=True,
        )
        assert json.loads(reply.stdout) == {"status": "ok"}


def test_tls_with_a_key_and_a_certificate(tmp_path: Path) -> None:
    folder = DATA / "tls"
    tls = ["--ssl-key-file", str(folder / "key.pem"), "--ssl-cert-file", str(folder / "cert.pem")]
    context = ssl.create_default_context(cafile=folder / "cert.pem")
    with ServerProcess(["--demo", "-c", "512", *tls], tmp_path / "log", wait=False) as server:
        while "loaded:" not in (tmp_path / "log").read_text():
            time.sleep(0.02)
        url = f"https://localhost:{server.port}/health"
        with urllib.request.urlopen(url, context=context) as response:
            assert json.load(response) == {"status": "ok"}
