"""OpenAI's routes over HTTP, with a worker that always says the same."""

import asyncio
import json
from typing import Any

import pytest

from gguf_hybrid.errors import StepError

from .conftest import Client
from .fakes import REPLY, FakeRuntime, tokenizer

ASK = {"messages": [{"role": "user", "content": "What does river mean?"}]}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = "<tool_call>\n<function=add>\n<parameter=a>\n12\n</parameter>\n</function>\n</tool_call>"
REPLIES = {
    "thinking only": REPLY,
    "thinking": f"I think.\n</think>\n\n{REPLY}",
    "call": f"I think.\n</think>\n\n{CALL}",
    "text and calls": f"I think.\n</think>\n\nLook:\n{CALL}\n{CALL}",
    "call in thinking": f"I will add. {CALL}",
    "unknown call": "</think>\n\n" + CALL.replace("add", "sub"),
    "unicode": "</think>\n\nZürich → 東京 🙂",
}


async def post(client: Client, path: str, body: Any, status: int = 200) -> Any:
    async with client.post(path, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def chunks(client: Client, path: str, body: Any) -> list[Any]:
    """The data of every frame but the ``[DONE]`` that ends the stream."""
    async with client.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        *frames, done, rest = (await response.text()).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def folded(chunks: list[Any]) -> dict[str, Any]:
    """The message that the deltas of a stream make up."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in [choice["delta"] for chunk in chunks for choice in chunk["choices"]]:
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message


@pytest.mark.parametrize("max_tokens", [-1, 1, 17])
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
async def test_chat_stream_folds_into_the_whole_answer(
    client: Client, runtime: FakeRuntime, reply: str, max_tokens: int
) -> None:
    runtime.worker.reply, runtime.worker.n_ctx = reply, 2048
    body = {**ASK, "tools": [TOOL], "max_tokens": max_tokens}
    whole = await post(client, "/v1/chat/completions", body)
    stream = await chunks(
        client, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}
    )
    (choice,), message = whole["choices"], whole["choices"][0]["message"]
    assert folded(stream) == {
        "content": message["content"],
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": [call["function"] for call in message.get("tool_calls", [])],
    }
    assert stream[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert stream[-2]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert stream[-1]["usage"] == whole["usage"]
    assert len({chunk["id"] for chunk in stream}) == 1
    assert [chunk.get("timings") is not None for chunk in stream] == [False] * (len(stream) - 1) + [
        True
    ]


async def test_nothing_of_a_call_that_is_none_is_lost(client: Client, runtime: FakeRuntime) -> None:
    runtime.worker.reply, runtime.worker.n_ctx = REPLIES["unknown call"], 2048
    whole = await post(client, "/v1/chat/completions", {**ASK, "tools": [TOOL]})
    assert whole["choices"][0]["message"]["content"] == CALL.replace("add", "sub")
    assert whole["choices"][0]["finish_reason"] == "stop"


async def test_without_declared_tools_a_call_is_content(
    client: Client, runtime: FakeRuntime
) -> None:
    runtime.worker.reply, runtime.worker.n_ctx = REPLIES["call"], 2048
    for body in (ASK, {**ASK, "tools": [TOOL], "tool_choice": "none"}):
        whole = await post(client, "/v1/chat/completions", body)
        assert whole["choices"][0]["message"]["content"] == CALL


@pytest.mark.parametrize(
    "fields",
    [{}, {"stop": [" large nat"]}, {"max_tokens": 4}, {"n": 2}, {"logprobs": 2}],
    ids=["eos", "word", "limit", "choices", "probs"],
)
async def test_text_stream_folds_into_the_whole_answer(client: Client, fields: Any) -> None:
    body = {"prompt": "What does river mean?", **fields}
    whole = await post(client, "/v1/completions", body)
    stream = await chunks(client, "/v1/completions", body)
    for choice in whole["choices"]:
        of_choice = [c["choices"][0] for c in stream if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in of_choice) == choice["text"]
        assert of_choice[-1]["finish_reason"] == choice["finish_reason"]
        assert all(c["finish_reason"] is None for c in of_choice[:-1])
    assert stream[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_error_before_the_first_token_is_plain_json(
    client: Client, runtime: FakeRuntime, path: str
) -> None:
    runtime.worker.n_ctx = 3
    body = {**ASK, "prompt": "What does river mean?", "stream": True}
    answer = await post(client, path, body, status=400)
    assert answer["error"]["type"] == "exceed_context_size_error"
    assert answer["error"]["n_ctx"] == 3


async def test_an_error_inside_a_stream_ends_it_without_done(
    client: Client, runtime: FakeRuntime
) -> None:
    runtime.worker.n_tokens_before_error = 2
    body = {**ASK, "stream": True}
    async with client.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200
        *_, last, rest = (await response.text()).split("\n\n")
    error = {"code": 500, "message": "the row has failed", "type": "server_error"}
    assert (json.loads(last.removeprefix("data: ")), rest) == ({"error": error}, "")


async def test_an_error_of_an_answer_that_is_not_streamed_has_its_status(
    client: Client, runtime: FakeRuntime
) -> None:
    runtime.worker.error = StepError("the row has failed")
    answer = await post(client, "/v1/chat/completions", ASK, status=500)
    assert answer["error"]["message"] == "the row has failed"


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"messages": None}, 400, "messages"),
        ({"tool_choice": "sometimes"}, 400, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, 400, "called x"),
        ({"tools": [TOOL], "grammar": 'root ::= "a"'}, 400, "grammar"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"json_schema": {"type": "object"}, "grammar": 'root ::= "a"'}, 500, "grammar"),
        ({"json_schema": {"type": "object", "if": {}}}, 400, "if"),
        ({"response_format": {"type": "xml"}}, 400, "response_format"),
        ({"reasoning_format": "loud"}, 500, "loud"),
        ({"top_logprobs": 2}, 400, "logprobs"),
        ({"n": 3}, 400, "'n'"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"reasoning_budget_tokens": -2}, 400, "reasoning_budget_tokens"),
    ],
)
async def test_a_wrong_body_names_what_is_wrong(
    client: Client, fields: Any, status: int, word: str
) -> None:
    answer = await post(client, "/v1/chat/completions", {**ASK, **fields}, status)
    assert word in answer["error"]["message"]
    assert answer["error"]["code"] == status


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "function", "function": {"name": "add"}}],
    ids=["required", "named"],
)
async def test_a_choice_of_tool_binds_from_the_first_token(
    client: Client, runtime: FakeRuntime, choice: Any
) -> None:
    runtime.worker.n_ctx = 2048
    body = {**ASK, "tools": [TOOL], "tool_choice": choice}
    await post(client, "/v1/chat/completions", body)
    await post(client, "/v1/chat/completions", {**ASK, "tools": [TOOL]})
    forced, free = (request.sampler.constraint for request in runtime.worker.submitted)
    assert forced is not None and forced.mask() is not None
    assert free is not None and free.mask() is None


async def test_the_prompt_is_cut_in_front_of_turns(client: Client, runtime: FakeRuntime) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "Two?"},
    ]
    await post(client, "/v1/chat/completions", {"messages": messages})
    (request,) = runtime.worker.submitted
    texts = [tokenizer().detokenize(request.prompt[cut:]) for cut in request.boundaries]
    assert texts[0].startswith("<|im_start|>user\nOne?")
    assert texts[1].startswith("<|im_start|>user\nTwo?")
    assert texts[2] == "<think>\n"


async def test_counted_tokens_are_those_that_are_run(client: Client, runtime: FakeRuntime) -> None:
    runtime.worker.n_ctx = 2048
    body = {**ASK, "tools": [TOOL]}
    await post(client, "/v1/chat/completions", body)
    counted = await post(client, "/v1/chat/completions/input_tokens", body)
    assert counted["input_tokens"] == len(runtime.worker.submitted[0].prompt)


async def test_thinking_is_ended_from_outside(client: Client, runtime: FakeRuntime) -> None:
    runtime.worker.gate.clear()
    body = {**ASK, "stream": True, "reasoning_control": True, "return_progress": True}
    async with client.post("/v1/chat/completions", json=body) as response:
        first = json.loads((await response.content.readuntil(b"\n\n"))[6:])
        (request,) = runtime.worker.submitted
        budget = request.sampler.budget
        assert budget is not None and budget.forced is None
        control = {"id": first["id"], "action": "reasoning_end"}
        answer = await post(client, "/v1/chat/completions/control", control)
        assert answer == {"success": True}
        assert budget.forced is not None
        runtime.worker.gate.set()
        await response.read()
    answer = await post(client, "/v1/chat/completions/control", control)
    assert answer["success"] is False


async def test_a_client_that_leaves_cancels_its_chat(client: Client, runtime: FakeRuntime) -> None:
    runtime.worker.gate.clear()
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.2):
            await post(client, "/v1/chat/completions", ASK)
    async with asyncio.timeout(5):
        while not runtime.worker.cancelled:
            await asyncio.sleep(0.01)
    assert runtime.worker.cancelled == [runtime.worker.submitted[0].id]
