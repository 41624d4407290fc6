"""The official ``openai`` and ``anthropic`` clients against a running server, unchanged.

Their types are left aside: what counts is what arrives.
"""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from .goldens import MODELS
from .server_process import ServerProcess

KEY = "secret"
SUM: Any = [{"role": "user", "content": "What is 12 + 30?"}]
WEATHER = "What is the weather in Paris?"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": CITY}
GREEDY: Any = {"model": "tiny", "temperature": 0}


class Answer(BaseModel):
    word: str
    n: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = str(MODELS / "qwen35-tiny-BF16.gguf")
    flags = ["-m", model, "-c", "4096", "-np", "2", "--alias", "tiny", "--api-key", KEY]
    with ServerProcess(flags, tmp_path_factory.mktemp("clients") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=KEY) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server: ServerProcess) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key=KEY) as client:
        yield client


def test_openai_lists_the_model(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_openai_chat_streams_what_it_answers(client: Any) -> None:
    whole = client.chat.completions.create(messages=SUM, **GREEDY)
    with client.chat.completions.stream(messages=SUM, **GREEDY) as stream:
        streamed = stream.until_done().get_final_completion()
    assert whole.choices[0].message.content == "42"
    assert streamed.choices[0].message.content == "42"
    assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None and whole.usage.completion_tokens > 0


def test_openai_text_completion(client: Any) -> None:
    whole = client.completions.create(prompt="import os\n\ndef ", max_tokens=8, **GREEDY)
    stream = client.completions.create(
        prompt="import os\n\ndef ", max_tokens=8, stream=True, **GREEDY
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text != ""


def test_openai_calls_a_tool_and_reads_its_result(client: Any) -> None:
    tools: Any = [{"type": "function", "function": FUNCTION}]
    messages: list[Any] = [{"role": "user", "content": WEATHER}]
    with client.chat.completions.stream(messages=messages, tools=tools, **GREEDY) as stream:
        reply = stream.until_done().get_final_completion().choices[0]
    assert reply.finish_reason == "tool_calls" and reply.message.tool_calls is not None
    (call,) = reply.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages += [
        reply.message.model_dump(exclude_none=True, exclude={"parsed"}),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 C"},
    ]
    answer = client.chat.completions.create(messages=messages, tools=tools, **GREEDY)
    assert "sunny" in (answer.choices[0].message.content or "")


def test_openai_must_call_the_tool_it_names(client: Any) -> None:
    other = {"name": "define", "parameters": {"type": "object", "properties": {}}}
    tools: Any = [{"type": "function", "function": f} for f in (FUNCTION, other)]
    choice: Any = {"type": "function", "function": {"name": "define"}}
    reply = client.chat.completions.create(
        messages=[{"role": "user", "content": WEATHER}], tools=tools, tool_choice=choice, **GREEDY
    ).choices[0]
    assert [c.function.name for c in reply.message.tool_calls or []] == ["define"]


def test_openai_parses_a_structured_answer(client: Any) -> None:
    chat = client.chat.completions.parse(
        messages=SUM, response_format=Answer, max_tokens=400, **GREEDY
    )
    assert isinstance(chat.choices[0].message.parsed, Answer)
    response = client.responses.parse(
        input=SUM, text_format=Answer, max_output_tokens=400, **GREEDY
    )
    assert isinstance(response.output_parsed, Answer)


def test_openai_responses_stream_what_they_answer(client: Any) -> None:
    tools: Any = [{"type": "function", "strict": True, **FUNCTION}]
    with client.responses.stream(input=WEATHER, tools=tools, **GREEDY) as stream:
        streamed = stream.until_done().get_final_response()
    whole = client.responses.create(input=WEATHER, tools=tools, **GREEDY)
    for response in (whole, streamed):
        reasoning, call = response.output
        assert reasoning.type == "reasoning" and call.type == "function_call"
        assert json.loads(call.arguments) == {"city": "Paris"}


@pytest.mark.parametrize("key", ["wrong", KEY])
def test_openai_raises_its_own_errors(server: ServerProcess, key: str) -> None:
    expected = openai.BadRequestError if key == KEY else openai.AuthenticationError
    with (
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0
        ) as client,
        pytest.raises(expected),
    ):
        client.chat.completions.create(model="tiny", messages=SUM, n=99)


def test_anthropic_streams_what_it_answers(claude: Any) -> None:
    ask: Any = {"model": "tiny", "max_tokens": 100, "extra_body": {"temperature": 0}}
    whole = claude.messages.create(messages=SUM, **ask)
    with claude.messages.stream(messages=SUM, **ask) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        thinking, text = message.content
        assert thinking.type == "thinking" and thinking.thinking
        assert text.type == "text" and text.text == "42"
        assert message.stop_reason == "end_turn"
    counted = claude.messages.count_tokens(model="tiny", messages=SUM)
    used = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    assert counted.input_tokens == used


def test_anthropic_calls_a_tool_and_reads_its_result(claude: Any) -> None:
    tool = {"name": "get_weather", "description": "Get the weather.", "input_schema": CITY}
    ask: Any = {"model": "tiny", "max_tokens": 100, "extra_body": {"temperature": 0}}
    messages: list[Any] = [{"role": "user", "content": WEATHER}]
    with claude.messages.stream(messages=messages, tools=[tool], **ask) as stream:
        reply = stream.get_final_message()
    assert reply.stop_reason == "tool_use"
    call = reply.content[-1]
    assert call.type == "tool_use" and call.input == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny, 21 C"}
    blocks = [block.model_dump(exclude_none=True) for block in reply.content]
    messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
    answer = claude.messages.create(messages=messages, tools=[tool], **ask)
    assert "sunny" in answer.content[-1].text


def test_anthropic_raises_its_own_errors(server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{server.port}"
    wrong = anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0)
    with wrong as client, pytest.raises(anthropic.AuthenticationError):
        client.messages.create(model="tiny", max_tokens=1, messages=SUM)
