"""Reports about the life of a request, against a real server and its embedded demo model."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from server.server_process import ServerProcess  # noqa: TID251 (tests/server)

N_CTX = 1024
STORY = "Once upon a time there was a cat"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("known")
    (folder / "slots").mkdir()
    flags = ["--demo", "-c", "4096", "-np", "4", "--metrics", "--slot-save-path"]
    with ServerProcess([*flags, str(folder / "slots")], folder / "log") as server:
        yield server


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("single")
    flags = ["--demo", "-c", "16384", "-np", "1", "--metrics", "--cache-ram", "0"]
    with ServerProcess(flags, folder / "log") as server:
        yield server


def call(server: ServerProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = server.connect()
    connection.request(method, path, None if body is None else json.dumps(body))
    with connection.getresponse() as response:
        raw = response.read()
    connection.close()
    is_json = "json" in response.headers.get("Content-Type", "")
    return response.status, json.loads(raw) if is_json else raw.decode()


def complete(server: ServerProcess, prompt: Any = STORY, **fields: Any) -> tuple[int, Any]:
    fields = {"n_predict": 8, "temperature": 0, "cache_prompt": False} | fields
    return call(server, "POST", "/completion", {"prompt": prompt, **fields})


def begin(server: ServerProcess, **fields: Any) -> http.client.HTTPConnection:
    """Send a completion and do not wait for anything."""
    connection = server.connect()
    connection.request("POST", "/completion", json.dumps({"prompt": STORY, **fields}))
    return connection


def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def n_busy(server: ServerProcess) -> int:
    return sum(slot["is_processing"] for slot in call(server, "GET", "/slots")[1])


def metric(server: ServerProcess, name: str) -> float:
    lines = call(server, "GET", "/metrics")[1].splitlines()
    return float(next(line for line in lines if line.startswith(f"llamacpp:{name} ")).split()[1])


def test_those_who_wait_are_told_from_those_who_run(single: ServerProcess) -> None:
    """Report 19: eight sockets, one slot."""
    links = [begin(single, n_predict=-1) for _ in range(8)]
    until(lambda: metric(single, "requests_deferred") == 7)
    assert metric(single, "requests_processing") == 1 == n_busy(single)
    for link in links:
        link.close()
    until(lambda: n_busy(single) == 0 and metric(single, "requests_deferred") == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_slot_is_free_soon_after_its_client_left(single: ServerProcess, stream: bool) -> None:
    """Report 47, while the answer is written."""
    link = begin(single, n_predict=-1, stream=stream)
    until(lambda: n_busy(single) == 1)
    link.close()
    until(lambda: n_busy(single) == 0)
    n_tokens = metric(single, "tokens_predicted_total")
    assert n_tokens < 8000


def test_a_client_that_leaves_during_its_prompt_stops_it(single: ServerProcess) -> None:
    """Reports 47, 52 and 53: busy from the start, answered meanwhile, and soon free."""
    before = metric(single, "prompt_tokens_total")
    link = begin(single, prompt=[5] * 16_000)
    until(lambda: n_busy(single) == 1)
    assert call(single, "GET", "/health")[0] == 200
    link.close()
    until(lambda: n_busy(single) == 0)
    assert metric(single, "prompt_tokens_total") - before < 16_000


def test_an_answer_does_not_depend_on_those_beside_it(server: ServerProcess) -> None:
    """Reports 49 and 50: a seed, and a greedy one, beside others with a temperature of 2."""
    asked = [{"seed": 7, "temperature": 1.0}, {"temperature": 0}]
    alone = [complete(server, **fields)[1]["content"] for fields in asked]
    with ThreadPoolExecutor(4) as clients:
        wild = [clients.submit(complete, server, temperature=2.0, n_predict=60) for _ in range(2)]
        beside = list(clients.map(lambda fields: complete(server, **fields)[1]["content"], asked))
    assert beside == alone and all(each.result()[0] == 200 for each in wild)


def test_slots_show_no_texts(server: ServerProcess) -> None:
    """Report 54: neither prompt nor answer."""
    answer = complete(server, "The code word is violet.", n_predict=20)[1]["content"]
    shown = json.dumps(call(server, "GET", "/slots")[1])
    assert "violet" not in shown and json.dumps(answer)[1:-1] not in shown


def test_a_refused_request_leaves_the_server_as_it_was(server: ServerProcess) -> None:
    """Report 55: a grammar that fails, then a normal request."""
    before = complete(server)[1]["content"]
    assert complete(server, grammar="root ::= root")[0] == 400
    assert complete(server)[1]["content"] == before


def test_the_context_of_a_slot_is_told_everywhere_alike(server: ServerProcess) -> None:
    """Report 56: -c 4096 -np 4."""
    props = call(server, "GET", "/props")[1]
    assert props["default_generation_settings"]["n_ctx"] == N_CTX and props["total_slots"] == 4
    assert {slot["n_ctx"] for slot in call(server, "GET", "/slots")[1]} == {N_CTX}
    assert str(N_CTX) in server.log.read_text()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [N_CTX, N_CTX + 1, 3 * N_CTX])
def test_a_prompt_that_does_not_fit_is_refused(server: ServerProcess, stream: bool, n: int) -> None:
    """Reports 58, 59, 60: one form, streamed or not, with both counts; nothing is cut."""
    status, answer = complete(server, [5] * n, stream=stream)
    assert status == 400 and answer["error"]["type"] == "exceed_context_size_error"
    assert (answer["error"]["n_prompt_tokens"], answer["error"]["n_ctx"]) == (n, N_CTX)


def test_an_answer_that_reaches_the_end_says_so(server: ServerProcess) -> None:
    """Report 60."""
    status, answer = complete(server, [5] * (N_CTX - 3), n_predict=-1, ignore_eos=True)
    assert status == 200 and answer["truncated"] and answer["tokens_predicted"] == 3


def test_the_first_token_may_be_the_end(server: ServerProcess) -> None:
    """Report 75: an end at once, with probabilities."""
    eos = call(server, "POST", "/tokenize", {"content": "<|im_end|>"})[1]["tokens"]
    answer = complete(server, logit_bias=[[eos[0], 1000]], n_probs=5)[1]
    assert (answer["content"], answer["stop_type"]) == ("", "eos")
    for entry in answer["completion_probabilities"]:
        assert len(entry["top_logprobs"]) == 5


@pytest.mark.parametrize("prompt", [[-1], [10**9], [2**63], [True], [1.5], [None], [[1.5]], [{}]])
def test_ids_that_are_none_are_refused(server: ServerProcess, prompt: Any) -> None:
    """Report 90."""
    assert complete(server, prompt)[0] == 400


@pytest.mark.parametrize("field", ["n_discard", "dry_allowed_length", "n_cmpl", "n", "n_keep"])
def test_counts_that_are_none_are_refused_or_clamped(server: ServerProcess, field: str) -> None:
    """Report 72: never a crash, and never an allocation of that size."""
    for value in (-(2**31), -1, 2**31, 2**63, "1", 1e300):
        assert complete(server, **{field: value})[0] in (200, 400)
    assert complete(server, **{field: "1"})[0] == 400


def test_what_a_request_may_ask_for_is_bounded(server: ServerProcess) -> None:
    """Report 91."""
    status, answer = complete(server, n_probs=10**9, n_predict=1)
    n_vocab = call(server, "GET", "/v1/models")[1]["data"][0]["meta"]["n_vocab"]
    assert status == 400 or len(answer["completion_probabilities"][0]["top_logprobs"]) <= n_vocab
    assert complete(server, n_cmpl=10**6)[0] == 400
    assert complete(server, stop=["x"] * 100_000, n_predict=1)[0] in (200, 400)


def test_no_address_in_a_message_is_visited(server: ServerProcess, single: ServerProcess) -> None:
    """Report 93: there are no images, so nothing is fetched."""
    before = single.log.stat().st_size
    url = f"http://127.0.0.1:{single.port}/health"
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    status, answer = call(server, "POST", "/v1/chat/completions", body)
    assert status == 500 and "image input is not supported" in answer["error"]["message"]
    assert single.log.stat().st_size == before


def test_saving_an_empty_slot_is_an_error(server: ServerProcess) -> None:
    """Report 38: no file is left behind that would restore nothing."""
    call(server, "POST", "/slots/3?action=erase")
    status, body = call(server, "POST", "/slots/3?action=save", {"filename": "none.bin"})
    assert status == 400 and "empty" in body["error"]["message"]
    restored = call(server, "POST", "/slots/3?action=restore", {"filename": "none.bin"})
    assert restored[0] == 400
