"""Anthropic's routes over HTTP, with a worker that always says the same."""

import json
from typing import Any

import pytest
from gguf_hybrid.server.anthropic_input import openai_body

from .conftest import Client
from .fakes import FakeRuntime
from .test_openai import REPLIES, post

ASK = {"messages": [{"role": "user", "content": "What does river mean?"}]}
TOOL = {
    "name": "add",
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


async def events(client: Client, path: str, body: Any) -> list[Any]:
    """The data of every frame; each names its event twice."""
    async with client.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        *frames, rest = (await response.text()).split("\n\n")
    assert rest == ""
    found = []
    for frame in frames:
        event, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert event == f"event: {found[-1]['type']}"
    return found


def folded(events: list[Any]) -> list[Any]:
    """The blocks a stream makes up."""
    blocks: list[Any] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"]})
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = ""
        elif event["type"] == "content_block_delta":
            for name, piece in event["delta"].items():
                key = "input" if name == "partial_json" else name
                if key != "type":
                    blocks[event["index"]][key] = blocks[event["index"]].get(key, "") + piece
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"])
    return blocks


def without_ids(blocks: list[Any]) -> list[Any]:
    return [{key: value for key, value in block.items() if key != "id"} for block in blocks]


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
async def test_stream_folds_into_the_whole_message(
    client: Client, runtime: FakeRuntime, reply: str
) -> None:
    runtime.worker.reply, runtime.worker.n_ctx = reply, 2048
    body = {**ASK, "tools": [TOOL]}
    whole = await post(client, "/v1/messages", body)
    stream = await events(client, "/v1/messages", body)
    assert without_ids(folded(stream)) == without_ids(whole["content"])
    assert stream[0]["type"] == "message_start"
    assert stream[0]["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert stream[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert stream[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert stream[-1] == {"type": "message_stop"}
    opened = [e["index"] for e in stream if e["type"] == "content_block_start"]
    assert opened == [e["index"] for e in stream if e["type"] == "content_block_stop"]


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"stop_sequences": [" large nat"]}, "end_turn", " large nat"),
        ({"max_tokens": 3}, "max_tokens", None),
    ],
)
async def test_why_a_message_stopped(
    client: Client, fields: Any, reason: str, sequence: str | None
) -> None:
    whole = await post(client, "/v1/messages", {**ASK, **fields})
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)


async def test_cached_tokens_are_counted_apart(client: Client, runtime: FakeRuntime) -> None:
    usage = (await post(client, "/v1/messages", ASK))["usage"]
    counted = await post(client, "/v1/messages/count_tokens", ASK)
    assert usage["cache_read_input_tokens"] + usage["input_tokens"] == counted["input_tokens"]


async def test_an_error_inside_a_stream_is_an_error_event(
    client: Client, runtime: FakeRuntime
) -> None:
    runtime.worker.n_tokens_before_error = 2
    async with client.post("/v1/messages", json={**ASK, "stream": True}) as response:
        *_, last, rest = (await response.text()).split("\n\n")
    event, data = last.split("\n")
    assert (event, rest) == ("event: error", "")
    assert json.loads(data.removeprefix("data: "))["message"] == "the row has failed"


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({}, 500, "messages"),
        ({"messages": 5}, 400, "array"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 500, "image"),
        ({**ASK, "max_tokens": "x"}, 400, "max_tokens"),
    ],
)
async def test_a_wrong_body_names_what_is_wrong(
    client: Client, body: Any, status: int, word: str
) -> None:
    answer = await post(client, "/v1/messages", body, status)
    assert word in answer["error"]["message"]


def test_fields_of_llama_cpp_are_not_passed_on() -> None:
    body = {**ASK, "seed": 1, "min_p": 0.5, "id_slot": 1, "temperature": 0.5}
    assert openai_body(body) == {**ASK, "temperature": 0.5, "max_tokens": 4096}


def test_results_of_tools_become_messages_of_their_own() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "1"}] * 2},
        {"type": "tool_result", "tool_use_id": "b"},
        {"type": "text", "text": "Go on."},
    ]
    assert openai_body({"messages": [{"role": "user", "content": blocks}]})["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
        {"role": "tool", "tool_call_id": "a", "content": "11"},
        {"role": "tool", "tool_call_id": "b", "content": ""},
    ]


def test_an_assistant_turn_keeps_its_parts() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
    ]
    function = {"name": "f", "arguments": '{"x":1}'}
    assert openai_body({"messages": [{"role": "assistant", "content": blocks}]})["messages"] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
            "reasoning_content": "Hm.",
        }
    ]


@pytest.mark.parametrize(
    ("text", "steady"),
    [
        ("x-anthropic-billing-header: v=1; cch=a5145; Hi", True),
        ("x-anthropic-billing-header: v=1; cch=a5145 Hi", False),
        ("x-anthropic-billing-header: v=1;", False),
        ("You said cch=a5145; Hi", False),
    ],
)
def test_only_the_stamp_of_a_billing_header_is_made_steady(text: str, steady: bool) -> None:
    message = openai_body({**ASK, "system": text})["messages"][0]
    expected = text.replace("a5145", "fffff") if steady else text
    assert message == {"role": "system", "content": expected}
