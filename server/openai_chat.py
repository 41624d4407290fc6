"""``/v1/chat/completions``, the counting of its tokens, and the control of a running reply."""

import asyncio
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from gguf_hybrid.engine.request import Done, Event, Progress, Token
from gguf_hybrid.errors import RequestError
from gguf_hybrid.text.deltas import (
    ChatMessage,
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)

from . import sse
from .answer import Frame, answer, error_frame
from .chat import Chat, ChatChoice, Step, count_tokens, make_chat
from .context import loaded
from .errors import json_response
from .jsontext import parse_object
from .openai_objects import Envelope, usage
from .results import Json
from .routes import Route, post

_CHUNK, _WHOLE = "chat.completion.chunk", "chat.completion"
_ROLE: Json = {"role": "assistant", "content": None}


async def chat_completion(request: web.Request) -> web.StreamResponse:
    body = parse_object(await request.read())
    model = loaded(request)
    chat = await asyncio.to_thread(make_chat, model, body)
    dialect = ChatAnswer(chat)
    with model.replies.running(dialect.id, chat.budgets):
        return await answer(
            request,
            model.worker,
            [[choice.request for choice in chat.completions]],
            dialect,
            stream=chat.params.stream,
            ping_interval=chat.params.sse_ping_interval,
        )


async def input_tokens(request: web.Request) -> web.Response:
    body = parse_object(await request.read())
    n_tokens = await asyncio.to_thread(count_tokens, loaded(request), body)
    return json_response({"input_tokens": n_tokens, "object": "response.input_tokens"})


async def control(request: web.Request) -> web.Response:
    """End the thinking of a running reply that was started with ``reasoning_control``."""
    body = parse_object(await request.read())
    id, action = body.get("id"), body.get("action")
    if not isinstance(id, str) or not id:
        raise RequestError("missing completion id")
    if action != "reasoning_end":
        raise RequestError("unknown control action")
    model = loaded(request)
    budgets = model.replies.budgets(id)
    if budgets is None:
        return _refused("no active completion for this id")
    if not budgets:
        return _refused("reasoning control not enabled for this completion")
    await model.worker.call(lambda engine: [budget.end_now() for budget in budgets])
    return json_response({"success": True})


def _refused(message: str) -> web.Response:
    return json_response({"success": False, "message": message})


class ChatAnswer:
    """OpenAI's form of a chat answer."""

    last = sse.DONE

    def __init__(self, chat: Chat) -> None:
        self._params = chat.params
        self._envelope = Envelope(chat.model.model_name)
        self._choices = chat.choices()

    @property
    def id(self) -> str:
        return self._envelope.id

    def feed(self, index: int, event: Event) -> Iterable[Frame]:
        choice = self._choices[index]
        match event:
            case Progress():
                return self._progress(choice, event)
            case Token():
                return self._pieces(choice, choice.token(event))
            case Done():
                return self._end(choice, choice.finish(event))
        return []

    def whole(self) -> object:
        results = [choice.native.whole() for choice in self._choices]
        choices = [
            _whole_choice(choice, result.get("completion_probabilities"))
            for choice, result in zip(self._choices, results, strict=True)
        ]
        more: Json = {"usage": usage(self._choices[0].done)}
        if self._params.verbose:
            more["__verbose"] = results[0]
        more["timings"] = results[0]["timings"]
        return self._envelope.around(choices, _WHOLE, **more)

    def failure(self, error: RequestError) -> Frame:
        return error_frame(error)

    def _progress(self, choice: ChatChoice, event: Progress) -> list[Frame]:
        chunk = choice.native.progress(event)
        if chunk is None:
            return []
        more = {name: chunk[name] for name in ("timings", "prompt_progress") if name in chunk}
        return [self._frame(_choice(choice, _ROLE), **more)]

    def _pieces(self, choice: ChatChoice, step: Step) -> list[Frame]:
        """A chunk for each piece; what is told of the token rides on the last of them."""
        deltas = [_ROLE] if step.is_first else []
        deltas += [delta_object(delta) for delta in step.deltas]
        if not deltas:
            return []
        chunks = [_choice(choice, delta) for delta in deltas]
        if step.logprobs:
            chunks[-1]["logprobs"] = {"content": step.logprobs}
        more: Json = {} if step.timings is None else {"timings": step.timings}
        return [*map(self._frame, chunks[:-1]), self._frame(chunks[-1], **more)]

    def _end(self, choice: ChatChoice, step: Step) -> list[Frame]:
        """The last pieces, the reason, and the usage when asked for; timings come last."""
        timings, step.timings = step.timings, None
        frames = self._pieces(choice, step)
        verbose = {"__verbose": choice.native.whole()} if self._params.verbose else {}
        last = _choice(choice, {}, choice.finish_reason)
        if not self._params.include_usage:
            return [*frames, self._frame(last, **verbose, timings=timings)]
        counts = self._envelope.around([], _CHUNK, usage=usage(choice.done), timings=timings)
        return [*frames, self._frame(last, **verbose), Frame(counts)]

    def _frame(self, choice: Json, **more: object) -> Frame:
        return Frame(self._envelope.around([choice], _CHUNK, **more))


def _choice(choice: ChatChoice, delta: Json, reason: str | None = None) -> Json:
    return {"finish_reason": reason, "index": choice.index, "delta": delta}


def _whole_choice(choice: ChatChoice, probabilities: object) -> Json:
    shown: Json = {
        "finish_reason": choice.finish_reason,
        "index": choice.index,
        "message": message_object(choice.message),
    }
    if probabilities:
        shown["logprobs"] = {"content": probabilities}
    return shown


def message_object(message: ChatMessage) -> Json:
    """A whole reply; ``content`` is a text even when there is none."""
    shown: Json = {"role": "assistant", "content": message.content}
    if message.reasoning_content:
        shown["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
                "id": call.id,
            }
            for call in message.tool_calls
        ]
    return shown


def delta_object(delta: Delta) -> Json:
    """One piece of a reply."""
    match delta:
        case ContentDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case ToolCallStart(index, id, name, arguments):
            function: dict[str, Any] = {"name": name, "arguments": arguments}
            call = {"index": index, "id": id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ToolCallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


ROUTES: tuple[Route, ...] = (
    post(chat_completion, "/v1/chat/completions", "/chat/completions"),
    post(input_tokens, "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"),
    post(control, "/v1/chat/completions/control"),
)
