"""Native routes over HTTP, with a worker that always answers the same."""

import asyncio
import json
from typing import Any

import pytest
from gguf_hybrid.server.results import NativeChoice

from gguf_hybrid.errors import StepError

from .conftest import Client, MakeClient
from .fakes import REPLY, FakeRuntime, reply_ids

PROMPT = "What does river mean?"


async def post(client: Client, path: str, body: Any, status: int = 200) -> Any:
    async with client.post(path, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def events(client: Client, body: Any) -> list[dict[str, Any]]:
    """The data of all frames of a streamed completion."""
    async with client.post("/completion", json={**body, "stream": True}) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        text = await response.text()
    assert text.endswith("\n\n")
    return [json.loads(frame.removeprefix("data: ")) for frame in text.split("\n\n")[:-1]]


async def test_whole_answer(client: Client) -> None:
    result = await post(client, "/completion", {"prompt": PROMPT, "return_tokens": True})
    assert result["content"] == REPLY
    assert result["tokens"] == list(reply_ids())
    assert result["stop_type"] == "eos"
    assert result["tokens_predicted"] == len(reply_ids())
    assert result["model"] == "tiny"
    assert result["prompt"] == PROMPT
    assert result["has_new_line"]


@pytest.mark.parametrize(
    "fields",
    [{}, {"stop": [" large nat"]}, {"n_predict": 4}, {"stop": ["noun: x"]}, {"n_probs": 2}],
    ids=["eos", "word", "limit", "partial", "probs"],
)
async def test_stream_folds_into_the_whole_answer(client: Client, fields: Any) -> None:
    body = {"prompt": PROMPT, **fields}
    whole = await post(client, "/completion", body)
    *chunks, last = await events(client, body)
    assert "".join(chunk["content"] for chunk in chunks) + last["content"] == whole["content"]
    assert [chunk["tokens_predicted"] for chunk in chunks] == list(range(1, len(chunks) + 1))
    assert all(chunk["stop"] is False and chunk["id_slot"] == -1 for chunk in chunks)
    same = whole.keys() - {"content", "completion_probabilities", "generation_settings"}
    assert {key: last[key] for key in same} == {key: whole[key] for key in same}


async def test_text_held_back_at_the_limit_comes_with_the_last_chunk(client: Client) -> None:
    n_predict = next(n for n in range(1, 9) if REPLY[:n].endswith("noun") or n == 5)
    body = {"prompt": PROMPT, "n_predict": n_predict, "stop": ["noun: a lake"]}
    whole = await post(client, "/completion", body)
    *_, last = await events(client, body)
    assert whole["content"].endswith(last["content"])


async def test_stop_chunk_carries_timings_and_probabilities_are_cut(client: Client) -> None:
    body = {"prompt": PROMPT, "stop": [" large"], "n_probs": 1}
    whole = await post(client, "/completion", body)
    *chunks, _ = await events(client, body)
    assert ["timings" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert len(whole["completion_probabilities"]) == len(chunks) - 1


async def test_several_prompts_and_choices_keep_their_order(client: Client) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "n_predict": 2}
    results = await post(client, "/completion", body)
    assert [result["index"] for result in results] == [0, 1, 2, 3]
    assert [result["prompt"] for result in results] == ["a", "a", "b", "b"]
    chunks = await events(client, body)
    assert {chunk["index"] for chunk in chunks} == {0, 1, 2, 3}
    assert sum(chunk["stop"] for chunk in chunks) == 4


async def test_choices_draw_with_seeds_in_a_row(client: Client, runtime: FakeRuntime) -> None:
    await post(client, "/completion", {"prompt": "a", "n": 2, "seed": 7})
    assert [request.sampler.params.seed for request in runtime.worker.submitted] == [7, 8]


async def test_response_fields_are_flattened(client: Client) -> None:
    fields = ["content", "timings/prompt_n", "generation_settings/n_predict", "nope/x"]
    body = {"prompt": "a b", "n_predict": 1, "response_fields": fields}
    whole = await post(client, "/completion", body)
    assert list(whole) == fields[:3]
    *_, last = await events(client, body)
    assert list(last) == fields[:3]


async def test_progress_only_in_a_stream(client: Client) -> None:
    body = {"prompt": PROMPT, "n_predict": 1, "return_progress": True}
    first, *_ = await events(client, body)
    assert first["prompt_progress"]["total"] == first["tokens_evaluated"]
    assert first["tokens"] == [0]
    assert "prompt_progress" not in await post(client, "/completion", body)


async def test_empty_prompt_ends_without_the_engine(client: Client, runtime: FakeRuntime) -> None:
    result = await post(client, "/completion", {"prompt": ""})
    assert (result["content"], result["stop_type"]) == ("", "none")
    assert runtime.worker.submitted == []


async def test_an_error_before_the_start_is_a_plain_answer(client: Client) -> None:
    body = {"prompt": [5] * 300, "stream": True}
    error = (await post(client, "/completion", body, 400))["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (300, 256)


async def test_engine_error_is_the_answer_of_its_request_only(
    client: Client, runtime: FakeRuntime
) -> None:
    runtime.worker.error = StepError("Context size has been exceeded.")
    error = (await post(client, "/completion", {"prompt": "a"}, 500))["error"]
    assert error == {
        "code": 500,
        "message": "Context size has been exceeded.",
        "type": "server_error",
    }
    runtime.worker.error = None
    await post(client, "/completion", {"prompt": "a"})


async def test_tokenize_and_back(client: Client) -> None:
    ids = (await post(client, "/tokenize", {"content": "Hello<|im_end|>"}))["tokens"]
    assert ids[-1] == 4078
    text = (await post(client, "/detokenize", {"tokens": ids}))["content"]
    assert text == "Hello<|im_end|>"
    plain = await post(client, "/tokenize", {"content": "<|im_end|>", "parse_special": False})
    assert len(plain["tokens"]) > 1


async def test_pieces_that_are_not_text_are_bytes(client: Client) -> None:
    body = {"content": "hé", "with_pieces": True}
    pieces = (await post(client, "/tokenize", body))["tokens"]
    assert [piece["piece"] for piece in pieces] == ["h", [195], [169]]


async def test_keep_alive_comments_fill_silence(client: Client, runtime: FakeRuntime) -> None:
    runtime.worker.gate.clear()
    body = {"prompt": "a", "n_predict": 1, "stream": True, "sse_ping_interval": 1}
    async with client.post("/completion", json=body) as response:
        assert await response.content.readline() == b":\n"
        runtime.worker.gate.set()
        assert (await response.content.read()).count(b"data: ") == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_its_request(
    client: Client, runtime: FakeRuntime, stream: bool
) -> None:
    runtime.worker.gate.clear()
    body = {"prompt": "a", "stream": stream}
    call = asyncio.ensure_future(client.post("/completion", json=body))
    while not runtime.worker.submitted:
        await asyncio.sleep(0.01)
    if stream:
        (await call).close()
    else:
        call.cancel()
    while not runtime.worker.cancelled:
        await asyncio.sleep(0.01)
    assert runtime.worker.cancelled == [runtime.worker.submitted[0].id]


async def test_slots_show_settings_after_the_first_task(
    make_client: MakeClient, runtime: FakeRuntime
) -> None:
    client = await make_client(slots=False)
    async with client.get("/slots") as response:
        assert response.status == 501
        assert "`--slots`" in (await response.json())["error"]["message"]


async def test_a_full_queue_says_when_to_come_back(
    make_client: MakeClient, runtime: FakeRuntime
) -> None:
    client = await make_client(queue_limit=1)
    runtime.worker.gate.clear()
    body = {"prompt": "a", "n_predict": 1}
    waiting = [asyncio.ensure_future(post(client, "/completion", body)) for _ in range(3)]
    while len(runtime.worker.submitted) < 3:
        await asyncio.sleep(0.01)
    async with client.post("/completion", json=body) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
    runtime.worker.gate.set()
    await asyncio.gather(*waiting)
    await post(client, "/completion", body)


async def test_an_unforeseen_error_in_a_stream_ends_it_with_an_error_frame(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(NativeChoice, "token", lambda self, event: 1 / 0)
    (frame,) = await events(client, {"prompt": "a"})
    assert (frame["error"]["code"], frame["error"]["type"]) == (500, "server_error")
    assert "ZeroDivisionError" in caplog.text
