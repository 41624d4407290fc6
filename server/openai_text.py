"""``/v1/completions``: the native completion in OpenAI's older form."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from aiohttp import web

from gguf_hybrid.engine.request import Done, Event, Token
from gguf_hybrid.errors import RequestError

from . import sse
from .answer import Frame, answer, error_frame
from .completion import Completion
from .context import Loaded, loaded
from .jsontext import parse_object
from .native import native_choice, prepare
from .openai_objects import Envelope, usage
from .results import Json, NativeChoice
from .routes import Route, post


async def text_completion(request: web.Request) -> web.StreamResponse:
    body = parse_object(await request.read())
    model = loaded(request)
    params, by_prompt = await asyncio.to_thread(prepare, model, body)
    completions = [choice for choices in by_prompt for choice in choices]
    return await answer(
        request,
        model.worker,
        [[choice.request for choice in choices] for choices in by_prompt],
        TextAnswer(model, completions, verbose=params.verbose),
        stream=params.stream,
        ping_interval=params.sse_ping_interval,
    )


class TextAnswer:
    """The choices of all prompts in one object; usage and timings are those of the first."""

    last = sse.DONE

    def __init__(self, model: Loaded, completions: list[Completion], *, verbose: bool) -> None:
        self._envelope = Envelope(model.model_name)
        self._verbose = verbose
        self._choices = [
            native_choice(model, replace(c, params=replace(c.params, response_fields=())))
            for c in completions
        ]

    def feed(self, index: int, event: Event) -> Iterable[Frame]:
        choice = self._choices[index]
        match event:
            case Token():
                chunk = choice.token(event)
                return [] if chunk is None else [self._frame(choice, chunk)]
            case Done():
                return [self._frame(choice, choice.finish(event), event)]
        return []

    def whole(self) -> object:
        first = self._choices[0]
        assert first.done is not None
        results = [choice.whole() for choice in self._choices]
        choices = [
            _choice(choice, result, choice.done)
            for choice, result in zip(self._choices, results, strict=True)
        ]
        more: Json = {"usage": usage(first.done)}
        if self._verbose:
            more["__verbose"] = results[0]
        more["timings"] = results[0]["timings"]
        return self._envelope.around(choices, "text_completion", **more)

    def failure(self, error: RequestError) -> Frame:
        return error_frame(error)

    def _frame(self, choice: NativeChoice, chunk: Json, done: Done | None = None) -> Frame:
        more: Json = {} if done is None else {"usage": usage(done)}
        if self._verbose:
            more["__verbose"] = chunk
        if "timings" in chunk:
            more["timings"] = chunk["timings"]
        choices = [_choice(choice, chunk, done)]
        return Frame(self._envelope.around(choices, "text_completion", **more))


def _choice(choice: NativeChoice, chunk: Json, done: Done | None) -> Json:
    probabilities = chunk.get("completion_probabilities")
    reason = None if done is None else "length"
    if done is not None and done.stop_type in ("eos", "word"):
        reason = "stop"
    return {
        "text": cast(str, chunk["content"]),
        "index": choice.index,
        "logprobs": {"content": probabilities} if probabilities else None,
        "finish_reason": reason,
    }


ROUTES: tuple[Route, ...] = (post(text_completion, "/v1/completions"),)
