"""``/v1/responses``: chats in the form of OpenAI's Responses.

A reply is a list of items. Each is announced with its first piece; all are closed, in order, at
the end, as llama-server does. ``output_index`` and its like are ours: OpenAI's client needs them.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import web

from gguf_hybrid.engine.request import Done, Event, Progress, Token
from gguf_hybrid.errors import RequestError
from gguf_hybrid.text.chat_parser import random_id
from gguf_hybrid.text.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)

from .answer import Frame, answer, error_frame
from .chat import Chat, Step, count_tokens, make_chat
from .context import loaded
from .errors import json_response
from .jsontext import parse_object
from .openai_objects import usage
from .responses_input import openai_body
from .results import Json
from .routes import Route, post

_REASONING, _MESSAGE = "reasoning", "message"


async def responses(request: web.Request) -> web.StreamResponse:
    body = openai_body(parse_object(await request.read()))
    model = loaded(request)
    chat = await asyncio.to_thread(make_chat, model, body)
    dialect = ResponseAnswer(chat)
    return await answer(
        request,
        model.worker,
        [[choice.request for choice in chat.completions]],
        dialect,
        stream=chat.params.stream,
        ping_interval=chat.params.sse_ping_interval,
    )


async def input_tokens(request: web.Request) -> web.Response:
    body = openai_body(parse_object(await request.read()))
    n_tokens = await asyncio.to_thread(count_tokens, loaded(request), body)
    return json_response({"input_tokens": n_tokens, "object": "response.input_tokens"})


@dataclass(slots=True)
class Item:
    """One item of a reply: its place, its ids, and its text so far."""

    index: int
    id: str
    kind: str
    name: str = ""
    call_id: str = ""
    text: str = ""

    def begun(self) -> Json:
        """As announced."""
        match self.kind:
            case "reasoning":
                return {**self._reasoning([]), "status": "in_progress"}
            case "message":
                return self._message([], "in_progress")
            case _:
                return {**self._call(""), "status": "in_progress"}

    def finished(self) -> Json:
        match self.kind:
            case "reasoning":
                return self._reasoning([{"text": self.text, "type": "reasoning_text"}])
            case "message":
                return self._message([self.part()], "completed")
            case _:
                return {**self._call(self.text), "status": "completed"}

    def part(self) -> Json:
        return {"type": "output_text", "annotations": [], "logprobs": [], "text": self.text}

    def _reasoning(self, content: list[Json]) -> Json:
        return {
            "id": self.id,
            "summary": [],
            "type": _REASONING,
            "content": content,
            "encrypted_content": "",
        }

    def _message(self, content: list[Json], status: str) -> Json:
        return {
            "type": _MESSAGE,
            "status": status,
            "id": self.id,
            "content": content,
            "role": "assistant",
        }

    def _call(self, arguments: str) -> Json:
        return {
            "type": "function_call",
            "arguments": arguments,
            "call_id": self.call_id,
            "id": self.id,
            "name": self.name,
        }


class ResponseAnswer:
    """The Responses form of a chat answer."""

    last = b""

    def __init__(self, chat: Chat) -> None:
        self._choice = chat.choices()[0]
        self._id = f"resp_{random_id()}"
        self._model = chat.model.model_name
        self._created = int(time.time())
        self._items: dict[str, Item] = {}
        self._n_events = 0
        self._has_begun = False

    def feed(self, index: int, event: Event) -> Iterable[Frame]:
        if index != self._choice.index:  # the API knows one reply
            return []
        match event:
            case Progress():
                return self._progress(event)
            case Token():
                return self._pieces(self._choice.token(event))
            case Done():
                step = self._choice.finish(event)
                timings, step.timings = step.timings, None
                return [*self._pieces(step), *self._end(timings)]
        return []

    def whole(self) -> object:
        output = [item.finished() for item in self._items.values()]
        return {
            "completed_at": int(time.time()),
            **self._response([{**item, "status": "completed"} for item in output]),
        }

    def failure(self, error: RequestError) -> Frame:
        return error_frame(error)

    def _response(self, output: list[Json]) -> Json:
        counts = usage(self._choice.done)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": "completed",
            "model": self._model,
            "output": output,
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "output_tokens": counts["completion_tokens"],
                "total_tokens": counts["total_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
            },
        }

    def _progress(self, event: Progress) -> list[Frame]:
        chunk = self._choice.native.progress(event)
        if chunk is None:
            return []
        frames = [] if self._has_begun else [self._in_progress("response.created")]
        self._has_begun = True
        more = {name: chunk[name] for name in ("timings", "prompt_progress") if name in chunk}
        return [*frames, self._in_progress("response.in_progress", **more)]

    def _pieces(self, step: Step) -> list[Frame]:
        frames: list[Frame] = []
        if not self._has_begun:
            self._has_begun = True
            frames = [self._in_progress(f"response.{name}") for name in ("created", "in_progress")]
        for delta in step.deltas:
            frames += self._piece(delta)
        if frames and step.timings is not None:
            assert isinstance(frames[-1].data, dict)
            frames[-1].data["timings"] = step.timings
        return frames

    def _piece(self, delta: Delta) -> list[Frame]:
        match delta:
            case ReasoningDelta(text):
                frames = self._open(
                    _REASONING, Item(len(self._items), f"rs_{random_id()}", _REASONING)
                )
                return [*frames, self._text(_REASONING, "response.reasoning_text.delta", text)]
            case ContentDelta(text):
                frames = self._open(
                    _MESSAGE, Item(len(self._items), f"msg_{random_id()}", _MESSAGE)
                )
                return [*frames, self._text(_MESSAGE, "response.output_text.delta", text)]
            case ToolCallStart(index, id, name, arguments):
                item = Item(len(self._items), f"fc_{random_id()}", "call", name, f"call_{id}")
                return [*self._open(_call(index), item), *self._arguments(index, arguments)]
            case ToolCallArguments(index, text):
                return self._arguments(index, text)

    def _open(self, key: str, item: Item) -> list[Frame]:
        """Announce an item that was not heard of before."""
        if key in self._items:
            return []
        self._items[key] = item
        frames = [self._frame("response.output_item.added", item, item=item.begun())]
        if item.kind == _MESSAGE:
            part = {"type": "output_text", "text": ""}
            frames.append(self._part_frame("response.content_part.added", item, part=part))
        return frames

    def _text(self, key: str, event: str, text: str) -> Frame:
        item = self._items[key]
        item.text += text
        return self._part_frame(event, item, delta=text)

    def _arguments(self, index: int, text: str) -> list[Frame]:
        item = self._items[_call(index)]
        item.text += text
        event = "response.function_call_arguments.delta"
        return [self._frame(event, item, item_id=item.id, delta=text)] if text else []

    def _end(self, timings: Json | None) -> list[Frame]:
        frames: list[Frame] = []
        for item in self._items.values():
            if item.kind == _MESSAGE:
                done = self._part_frame("response.output_text.done", item, text=item.text)
                part = self._part_frame("response.content_part.done", item, part=item.part())
                frames += [done, part]
            frames.append(self._frame("response.output_item.done", item, item=item.finished()))
        output = [item.finished() for item in self._items.values()]
        response = self._response(output)
        return [*frames, self._event("response.completed", response=response, timings=timings)]

    def _in_progress(self, event: str, **more: object) -> Frame:
        response = {"id": self._id, "object": "response", "status": "in_progress", "output": []}
        return self._event(event, response=response, **more)

    def _part_frame(self, event: str, item: Item, /, **fields: object) -> Frame:
        return self._frame(event, item, item_id=item.id, content_index=0, **fields)

    def _frame(self, event: str, item: Item, /, **fields: object) -> Frame:
        return self._event(event, output_index=item.index, **fields)

    def _event(self, event: str, **fields: object) -> Frame:
        number, self._n_events = self._n_events, self._n_events + 1
        return Frame({"type": event, "sequence_number": number, **fields}, event)


def _call(index: int) -> str:
    """The key of a tool call's item."""
    return f"call {index}"


ROUTES: tuple[Route, ...] = (
    post(responses, "/v1/responses", "/responses"),
    post(input_tokens, "/v1/responses/input_tokens", "/responses/input_tokens"),
)
