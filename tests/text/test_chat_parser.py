"""A reply means the same wherever it is cut, and none of it is lost."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_hybrid.errors import RequestError
from gguf_hybrid.text.chat_parser import ChatParser, parse_reasoning_format, random_id
from gguf_hybrid.text.deltas import (
    ChatMessage,
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
    fold,
)

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "chat" / "replies.json").read_text())


def tool(name: str, **properties: Any) -> dict[str, Any]:
    function = {"name": name, "parameters": {"type": "object", "properties": properties}}
    return {"type": "function", "function": function}


TOOLS = [
    tool("weather", city={"type": "string"}),
    tool("add", a={"type": "integer"}, b={"type": "number"}),
    tool(
        "mix",
        flag={"type": "boolean"},
        items={"type": "array", "items": {"type": "object"}},
        either={"type": ["string", "number"]},
        any={},
        choice={"enum": ["x", 3]},
        ref={"$ref": "#/$defs/s"},
        union={"anyOf": [{"type": "string"}, {"type": "null"}]},
    ),
]
TOOLS[2]["function"]["parameters"]["$defs"] = {"s": {"type": "string"}}


def deltas_of(chunks: list[str], tools: Any = TOOLS, **options: Any) -> Iterator[Delta]:
    ids = map("call{}".format, count())
    defaults: dict[str, Any] = {"thinks": True, "new_id": lambda: next(ids)}
    parser = ChatParser(tools, **defaults | options)
    for chunk in chunks:
        yield from parser.push(chunk)
    yield from parser.finish()


def parse(text: str, tools: Any = TOOLS, **options: Any) -> ChatMessage:
    return fold(deltas_of([text], tools, **options))


def cut(text: str, at: list[int]) -> list[str]:
    edges = [0, *sorted(min(i, len(text)) for i in at), len(text)]
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def xml(function: str, **parameters: str) -> str:
    lines = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items()]
    return f"<tool_call>\n<function={function}>\n{''.join(lines)}</function>\n</tool_call>"


def hermes(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


REPLIES = [
    "<think>\nWhy?\n</think>\n\nBecause.",
    "Let me look.\n" + xml("weather", city="Paris"),
    "<think>\nLet me look. " + xml("weather", city="Paris"),
    xml("weather", city='a\n</par\n<b>é😀\\"') + "\n" + xml("add", a="1", b="-2.5e3"),
    xml("mix", flag="true", items='[{"a": 1}]', either="12", any="[]", choice="x", ref="7"),
    xml("mix", flag="True", items="[1,", either="a b", any="<x>", choice="3", union="null"),
    xml("add", a="12 apples", b="-"),
    xml("nobody", x="1") + "tail",
    "<tool_call>\n<function=weather>\n<parameter=city>\nRome</parameter></function></tool_call> x",
    "<tool_call><function=weather><parameter=city>Rome\n</parameter>\n</parameter>\n</function>",
    "<tool_call>\n<function=weather>\nstray<b>\n<parameter=city>\nRome\n</parameter>\n</tool_call>y",
    "<tool_call>\n<function=add>\n</function>\n<function=weather>\n</function>\n</tool_call>",
    "<tool_call>\n<function=add>\n<tool_call>\n<function=add>\n</function>\n</tool_call>",
    "<tool_call>\n<function=we<tool_call>\n<function=weather>\n<parameter=city>\nX</parameter> y",
    hermes("weather", {"city": "a</tool_call>b é"}) + "\n" + hermes("add", {"a": 1}) + "end",
    hermes("weather", '{"city": "x"}') + hermes("nobody", {}),
    '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": 1',
    "<tool_call>{]}</tool_call> and more",
    "a < b <tool <think> </think> </tool_call> <function=add>",
    "   ",
]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_recorded_replies_parse_as_in_llama_server_at_every_cut(case: dict[str, Any]) -> None:
    options = {key: case[key] for key in ("thinks", "reply_prefix", "reasoning_format")}
    calls = tuple(ToolCall(f"call{i}", *call) for i, call in enumerate(case["tool_calls"]))
    expected = ChatMessage(case["content"], case["reasoning_content"], calls)
    text = case["text"]
    for chunks in [[text], list(text), *(cut(text, [i]) for i in range(len(text)))]:
        assert fold(deltas_of(chunks, case["tools"], **options)) == expected


@pytest.mark.parametrize("text", REPLIES)
@pytest.mark.parametrize("thinks", [True, False])
def test_every_reply_means_the_same_at_every_cut(text: str, thinks: bool) -> None:
    whole = parse(text, thinks=thinks)
    assert fold(deltas_of(list(text), thinks=thinks)) == whole
    for i in range(len(text)):
        for j in (i, i + 1, i + 2, i + 7):
            assert fold(deltas_of(cut(text, [i, j]), thinks=thinks)) == whole


MARKUP = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=add>",
    "<function=weather>",
    "</function>",
    "<parameter=a>",
    "<parameter=city>",
    "</parameter>",
    '{"name": "add", "arguments": {',
    "}",
    "\n",
    " ",
    "12",
    "<",
]
soup = st.lists(st.one_of(st.sampled_from(MARKUP), st.sampled_from("xyzé")), max_size=20)


@settings(deadline=None, max_examples=150)
@given(soup, st.lists(st.integers(0, 200), max_size=6), st.booleans())
def test_any_markup_parses_the_same_at_any_cuts(
    parts: list[str], at: list[int], thinks: bool
) -> None:
    text = "".join(parts)
    assert fold(deltas_of(cut(text, at), thinks=thinks)) == parse(text, thinks=thinks)


@settings(deadline=None, max_examples=150)
@given(soup, st.booleans())
def test_no_words_are_lost(parts: list[str], thinks: bool) -> None:
    message = parse("".join(parts), thinks=thinks)
    calls = "".join(call.arguments for call in message.tool_calls)
    shown = message.reasoning_content + message.content + calls
    for word in "xyzé":
        assert shown.count(word) >= parts.count(word)


@given(st.text(), st.lists(st.integers(0, 30), max_size=3))
def test_without_thinking_and_tools_the_content_is_the_text(text: str, at: list[int]) -> None:
    assert fold(deltas_of(cut(text, at), tools=(), thinks=False)) == ChatMessage(text)


def test_a_call_streams_as_in_llama_server() -> None:
    text = "Go.\n|</think>|\n\n|<tool_call>|\n|<function|=add|>\n|<parameter|=a|>\n|1|7|\n|</|"
    text += "parameter|>\n|<parameter|=b|>\n|2|5|\n|</|parameter|>\n|</|function|>\n|</tool_call>"
    assert list(deltas_of(text.split("|"), reply_prefix="<think>\n")) == [
        ReasoningDelta("Go.\n"),
        ToolCallStart(0, "call0", "add", "{"),
        *(ToolCallArguments(0, t) for t in ['"a":', "1", "7", ',"b":', "2", "5", "}"]),
    ]


def test_a_string_streams_as_it_arrives() -> None:
    chunks = ["<tool_call>\n<function=weather>\n<parameter=city>\n", 'Pa"', "r\n", "is\n", "</par"]
    assert list(deltas_of([*chunks, "ameter>\n", "</function>"])) == [
        ToolCallStart(0, "call0", "weather", '{"city":"'),
        *(ToolCallArguments(0, t) for t in ['Pa\\"', "r", "\\nis", '"', "}"]),
    ]


def test_the_prefix_comes_with_the_first_text() -> None:
    assert list(deltas_of(["a", "b"], reply_prefix="<think>\n\n</think>\n\nOh, ")) == [
        ContentDelta("Oh, a"),
        ContentDelta("b"),
    ]


def arguments_of(text: str) -> Any:
    (call,) = parse(text).tool_calls
    return json.loads(call.arguments)


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        ("flag", "true", True),
        ("flag", "True", "True"),
        ("items", '[{"a": 1}, 2]', [{"a": 1}, 2]),
        ("items", "[1,", "[1,"),
        ("items", "[NaN]", "[NaN]"),
        ("either", "12", 12),
        ("either", '"12"', '"12"'),
        ("either", "[1]", "[1]"),
        ("any", "null", None),
        ("any", '{"k": [1]}', {"k": [1]}),
        ("any", "plain", "plain"),
        ("choice", "3", 3),
        ("choice", "x", "x"),
        ("ref", "123", "123"),
        ("union", "null", None),
        ("union", "12", "12"),
        ("undeclared", "12", 12),
        ("ref", "  two\n\nlines ", "  two\n\nlines "),
        ("ref", "</parameter>", "</parameter>"),
        ("ref", "a</parameter>b", "a</parameter>b"),
        ("ref", "", ""),
        ("any", "[" * 100_000, "[" * 100_000),
    ],
)
def test_the_schema_decides_what_a_value_is(parameter: str, value: str, expected: Any) -> None:
    assert arguments_of(xml("mix", **{parameter: value})) == {parameter: expected}


@pytest.mark.parametrize(
    ("value", "expected"), [("12", 12), ("-1.5e3", -1500.0), ("abc", "abc"), ("1e999999", 1e999)]
)
def test_numbers(value: str, expected: Any) -> None:
    assert arguments_of(xml("add", a=value)) == {"a": expected}


def test_what_follows_a_number_is_content() -> None:
    message = parse(xml("add", a="12 apples"))
    assert message == ChatMessage("apples", "", (ToolCall("call0", "add", '{"a":12}'),))


def test_broken_schemas_leave_the_type_open() -> None:
    broken: list[Any] = [None, [], {"properties": 3}, {"properties": {"p": {"$ref": "#/x"}}}]
    broken += [{"properties": {"p": schema}} for schema in (True, {"type": 5}, {"type": ["?"]})]
    for parameters in broken:
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        (call,) = parse(xml("f", p="[1]"), tools).tool_calls
        assert json.loads(call.arguments) == {"p": [1]}


def test_text_around_calls_is_content() -> None:
    message = parse("Let me look. " + xml("weather", city="X") + "\n\nDone.")
    assert message.content == "Let me look. Done."
    assert [call.name for call in message.tool_calls] == ["weather"]


def test_parallel_calls_are_numbered() -> None:
    mixed = xml("add", a="1") + "\n" + hermes("add", {"a": 2}) + "\n" + xml("add", a="3")
    calls = parse(mixed).tool_calls
    assert [call.id for call in calls] == ["call0", "call1", "call2"]
    assert [json.loads(call.arguments)["a"] for call in calls] == [1, 2, 3]


def test_a_second_closing_tag_is_tolerated() -> None:
    text = xml("weather", city="X").replace("</parameter>", "</parameter>\n</parameter>")
    assert parse(text) == ChatMessage(tool_calls=(ToolCall("call0", "weather", '{"city":"X"}'),))


@pytest.mark.parametrize(
    "text",
    [
        xml("nobody", x="1"),
        hermes("nobody", {}),
        "<tool_call>{bad}</tool_call> tail",
        "<tool_call>\nplain\n</tool_call>",
        "<tool_call>\n<function=weather",
    ],
)
def test_what_is_no_call_of_a_declared_tool_stays_content(text: str) -> None:
    assert parse(text) == ChatMessage(text)


def test_calls_stay_content_where_no_tools_are_declared() -> None:
    text = xml("weather", city="X")
    assert parse(text, tools=()) == ChatMessage(text)


def test_models_without_thinking_may_leave_out_the_outer_tag() -> None:
    text = xml("weather", city="X").removeprefix("<tool_call>\n")
    assert arguments_of_first(parse(text, thinks=False)) == {"city": "X"}
    assert parse(text, thinks=True) == ChatMessage(text)


def arguments_of_first(message: ChatMessage) -> Any:
    return json.loads(message.tool_calls[0].arguments)


def test_a_json_call_without_its_closing_tag_counts_at_the_end() -> None:
    text = hermes("weather", {"city": "X"}).removesuffix("\n</tool_call>")
    assert arguments_of_first(parse(text)) == {"city": "X"}


def test_reasoning_formats() -> None:
    assert parse_reasoning_format("deepseek-legacy") == "deepseek-legacy"
    with pytest.raises(RequestError, match="Unknown reasoning format: x") as refused:
        parse_reasoning_format("x")
    assert refused.value.status == 500


def test_ids_are_random() -> None:
    assert len(random_id()) == 32 and random_id() != random_id()
