"""The Responses routes over HTTP, with a worker that always says the same."""

from typing import Any

import pytest
from gguf_hybrid.server.responses_input import openai_body

from gguf_hybrid.errors import RequestError

from .conftest import Client
from .fakes import FakeRuntime
from .test_anthropic import events
from .test_openai import REPLIES, TOOL, post

ASK = {"input": "What does river mean?"}
FUNCTION = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
IDS = ("id", "call_id", "status")


def plain(items: list[Any]) -> list[Any]:
    """Items without what differs from answer to answer."""
    return [{key: value for key, value in item.items() if key not in IDS} for item in items]


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
async def test_stream_folds_into_the_whole_response(
    client: Client, runtime: FakeRuntime, reply: str
) -> None:
    runtime.worker.reply, runtime.worker.n_ctx = reply, 2048
    body = {**ASK, "tools": [FUNCTION]}
    whole = await post(client, "/v1/responses", body)
    stream = await events(client, "/v1/responses", body)
    assert [e["type"] for e in stream[:2]] == ["response.created", "response.in_progress"]
    completed = stream[-1]["response"]
    assert plain(completed["output"]) == plain(whole["output"])
    assert completed["usage"] == whole["usage"]
    items = whole["output"]
    texts = [""] * len(items)
    for event in stream:
        if event["type"].endswith(".delta"):
            texts[event["output_index"]] += event["delta"]
    assert texts == [
        item.get("arguments") or item["content"][0]["text"] for item in whole["output"]
    ]


async def test_events_are_numbered_and_items_announced(
    client: Client, runtime: FakeRuntime
) -> None:
    runtime.worker.reply, runtime.worker.n_ctx = REPLIES["text and calls"], 2048
    stream = await events(client, "/v1/responses", {**ASK, "tools": [FUNCTION]})
    assert [e["sequence_number"] for e in stream] == list(range(len(stream)))
    known: list[int] = []
    for event in stream:
        if event["type"] == "response.output_item.added":
            known.append(event["output_index"])
        elif "output_index" in event:
            assert event["output_index"] in known
    assert known == list(range(len(known)))


async def test_an_error_inside_a_stream_is_a_frame(client: Client, runtime: FakeRuntime) -> None:
    runtime.worker.n_tokens_before_error = 2
    async with client.post("/v1/responses", json={**ASK, "stream": True}) as response:
        *_, last, rest = (await response.text()).split("\n\n")
    assert "the row has failed" in last
    assert rest == ""


async def test_counted_tokens_are_those_that_are_run(client: Client, runtime: FakeRuntime) -> None:
    body = {**ASK, "instructions": "Be brief."}
    await post(client, "/v1/responses", body)
    counted = await post(client, "/v1/responses/input_tokens", body)
    assert counted["input_tokens"] == len(runtime.worker.submitted[0].prompt)


def test_the_items_of_a_turn_become_one_message() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Add."}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "message", "role": "assistant", "content": "I will."},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
    ]
    function = {"name": "add", "arguments": "{}"}
    assert openai_body({"input": items, "max_output_tokens": 5}) == {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Add."}]},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "I will."}],
                "reasoning_content": "Hm",
                "tool_calls": [{"id": "c", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "3"},
        ],
        "max_tokens": 5,
    }


def test_the_form_of_the_text_binds_the_answer() -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "integer"}}
    body = openai_body({**ASK, "text": {"format": form}})
    assert body["response_format"] == {"type": "json_schema", "json_schema": form}


def test_tools_that_openai_would_run_are_left_out() -> None:
    body = openai_body({**ASK, "tools": [{"type": "web_search"}, FUNCTION]})
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "'input' is required"),
        ({"input": 5}, "'input'"),
        ({**ASK, "previous_response_id": "r"}, "previous_response_id"),
        ({"input": [{"type": "computer_call"}]}, "Cannot determine type"),
        ({"input": [5]}, "Cannot determine type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input_file"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "requires 'text'"),
        ({**ASK, "tools": {}}, "'tools'"),
    ],
)
def test_a_wrong_body_names_what_is_wrong(body: Any, word: str) -> None:
    with pytest.raises(RequestError, match=word) as caught:
        openai_body(body)
    assert caught.value.status == 400
