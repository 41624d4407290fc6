"""``/v1/messages``: chats in Anthropic's form.

A reply is a list of blocks. In a stream every block is announced when its first piece comes; as in
llama-server all blocks stay open until the end, so that pieces may come in any order.
"""

import asyncio
import json
from collections.abc import Iterable

from aiohttp import web

from gguf_hybrid.engine.request import Done, Event, Timings, Token
from gguf_hybrid.errors import RequestError
from gguf_hybrid.text.chat_parser import random_id
from gguf_hybrid.text.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
)

from .answer import Frame, answer
from .anthropic_input import openai_body
from .chat import Chat, ChatChoice, Step, count_tokens, make_chat
from .context import loaded
from .errors import error_object, json_response
from .jsontext import parse_object
from .results import Json
from .routes import Route, post

_THINKING, _TEXT = "thinking", "text"
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


async def messages(request: web.Request) -> web.StreamResponse:
    body = openai_body(parse_object(await request.read()))
    model = loaded(request)
    chat = await asyncio.to_thread(make_chat, model, body)
    return await answer(
        request,
        model.worker,
        [[choice.request for choice in chat.completions]],
        MessageAnswer(chat),
        stream=chat.params.stream,
        ping_interval=chat.params.sse_ping_interval,
    )


async def count(request: web.Request) -> web.Response:
    body = openai_body(parse_object(await request.read()))
    n_tokens = await asyncio.to_thread(count_tokens, loaded(request), body)
    return json_response({"input_tokens": n_tokens})


class MessageAnswer:
    """Anthropic's form of a chat answer."""

    last = b""

    def __init__(self, chat: Chat) -> None:
        (self._choice,) = chat.choices()
        self._id = f"chatcmpl-{random_id()}"
        self._model = chat.model.model_name
        self._blocks: dict[str, int] = {}

    def feed(self, index: int, event: Event) -> Iterable[Frame]:
        match event:
            case Token():
                return self._pieces(self._choice.token(event), event.timings)
            case Done():
                pieces = self._pieces(self._choice.finish(event), event.timings)
                return [*pieces, *self._end()]
        return []

    def whole(self) -> object:
        done = self._choice.done
        return {
            **self._head(),
            "content": _blocks(self._choice),
            "model": self._model,
            **self._stop(),
            "usage": {**_input_usage(done.timings), "output_tokens": done.timings.predicted_n},
        }

    def failure(self, error: RequestError) -> Frame:
        return Frame(error_object(error), "error")

    def _head(self) -> Json:
        return {"id": self._id, "type": "message", "role": "assistant"}

    def _stop(self) -> Json:
        word = self._choice.done.stop_word
        return {
            "stop_reason": _STOP_REASONS[self._choice.finish_reason],
            "stop_sequence": word or None,
        }

    def _pieces(self, step: Step, timings: Timings) -> list[Frame]:
        frames = [self._start(timings)] if step.is_first else []
        for delta in step.deltas:
            frames += self._piece(delta)
        return frames

    def _start(self, timings: Timings) -> Frame:
        message: Json = {
            **self._head(),
            "content": [],
            "model": self._model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**_input_usage(timings), "output_tokens": 0},
        }
        return _frame("message_start", message=message)

    def _piece(self, delta: Delta) -> list[Frame]:
        match delta:
            case ReasoningDelta(text):
                opened = self._open(_THINKING, {"type": _THINKING, "thinking": ""})
                return [*opened, self._delta(_THINKING, "thinking_delta", thinking=text)]
            case ContentDelta(text):
                opened = self._open(_TEXT, {"type": _TEXT, "text": ""})
                return [*opened, self._delta(_TEXT, "text_delta", text=text)]
            case ToolCallStart(index, id, name, arguments):
                opened = self._open(_tool(index), {"type": "tool_use", "id": id, "name": name})
                return [*opened, *self._input(index, arguments)]
            case ToolCallArguments(index, text):
                return self._input(index, text)

    def _open(self, block: str, content: Json) -> list[Frame]:
        """Announce a block that was not heard of before."""
        if block in self._blocks:
            return []
        self._blocks[block] = len(self._blocks)
        index = self._blocks[block]
        return [_frame("content_block_start", index=index, content_block=content)]

    def _input(self, index: int, text: str) -> list[Frame]:
        if not text:
            return []
        return [self._delta(_tool(index), "input_json_delta", partial_json=text)]

    def _delta(self, block: str, kind: str, **piece: str) -> Frame:
        delta = {"type": kind, **piece}
        return _frame("content_block_delta", index=self._blocks[block], delta=delta)

    def _end(self) -> list[Frame]:
        frames = []
        if _THINKING in self._blocks:
            frames.append(self._delta(_THINKING, "signature_delta", signature=""))
        frames += [_frame("content_block_stop", index=i) for i in self._blocks.values()]
        output = {"output_tokens": self._choice.done.timings.predicted_n}
        frames.append(_frame("message_delta", delta=self._stop(), usage=output))
        return [*frames, _frame("message_stop")]


def _frame(event: str, **fields: object) -> Frame:
    return Frame({"type": event, **fields}, event)


def _tool(index: int) -> str:
    """The name of a tool call's block."""
    return f"tool {index}"


def _input_usage(timings: Timings) -> Json:
    """``input_tokens`` are those that had to be read: cached ones are counted apart."""
    return {"cache_read_input_tokens": timings.cache_n, "input_tokens": timings.prompt_n}


def _blocks(choice: ChatChoice) -> list[Json]:
    message = choice.message
    blocks: list[Json] = []
    if message.reasoning_content:
        thinking = message.reasoning_content
        blocks.append({"type": "thinking", "thinking": thinking, "signature": ""})
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    return blocks + [_tool_use(call) for call in message.tool_calls]


def _tool_use(call: ToolCall) -> Json:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:  # the reply was cut off inside the call
        arguments = {}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


ROUTES: tuple[Route, ...] = (
    post(messages, "/v1/messages"),
    post(count, "/v1/messages/count_tokens"),
)
