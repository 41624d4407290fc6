"""llama.cpp's own routes for generating and for tokens."""

import asyncio
from collections.abc import Iterable, Sequence

from aiohttp import web

from gguf_hybrid.engine.request import Done, Event, Progress, Token
from gguf_hybrid.errors import RequestError

from .answer import Frame, answer, error_frame
from .chat_prompt import chat_input
from .completion import Completion, make_completions, own_grammar
from .context import Loaded, loaded
from .errors import json_response
from .jsontext import parse_object, required, type_error
from .prompts import tokenize_prompts
from .results import Json, NativeChoice
from .routes import Route, post
from .schema import CompletionParams


async def completion(request: web.Request) -> web.StreamResponse:
    body = parse_object(await request.read())
    model = loaded(request)
    params, completions = await asyncio.to_thread(prepare, model, body)
    return await answer(
        request,
        model.worker,
        [[choice.request for choice in choices] for choices in completions],
        NativeAnswer(model, [choice for choices in completions for choice in choices]),
        stream=params.stream,
        ping_interval=params.sse_ping_interval,
    )


def prepare(model: Loaded, body: Json) -> tuple[CompletionParams, list[list[Completion]]]:
    """Everything that takes time with long prompts and grammars."""
    prompt = required(body, "prompt")
    params = model.schema.read(body)
    prompts = tokenize_prompts(model.tokenizer, prompt)
    grammar = own_grammar(model, params)
    return params, make_completions(model, params, prompts, grammar=grammar)


class NativeAnswer:
    """The native form of an answer: one object, or an array when there are several choices."""

    last = b""

    def __init__(self, model: Loaded, completions: Sequence[Completion]) -> None:
        self._choices = [native_choice(model, completion) for completion in completions]

    def feed(self, index: int, event: Event) -> Iterable[Frame]:
        chunk = feed_native(self._choices[index], event)
        return [] if chunk is None else [Frame(chunk)]

    def whole(self) -> object:
        results = [choice.whole() for choice in self._choices]
        return results[0] if len(results) == 1 else results

    def failure(self, error: RequestError) -> Frame:
        return error_frame(error)


def native_choice(model: Loaded, completion: Completion) -> NativeChoice:
    return NativeChoice(
        completion.index,
        completion.request.prompt,
        completion.params,
        completion.settings,
        model.tokenizer,
        model=model.model_name,
        special=model.config.special,
    )


def feed_native(choice: NativeChoice, event: Event) -> Json | None:
    """The native chunk of an event, if it makes one."""
    match event:
        case Progress():
            return choice.progress(event)
        case Token():
            return choice.token(event)
        case Done():
            return choice.finish(event)
    return None


async def apply_template(request: web.Request) -> web.Response:
    """The prompt a chat body would get; nothing is run."""
    body = parse_object(await request.read())
    return json_response({"prompt": chat_input(loaded(request), body).prompt.text})


async def tokenize(request: web.Request) -> web.Response:
    body = parse_object(await request.read())
    tokenizer = loaded(request).tokenizer
    ids = tokenizer.encode_prompt(
        _content(body.get("content", "")),
        add_special=body.get("add_special") is True,
        parse_special=body.get("parse_special") is not False,
    )
    if body.get("with_pieces") is not True:
        return json_response({"tokens": ids})
    tokenizer.require_ids(ids)
    pieces = [{"id": i, "piece": _piece(tokenizer.token_bytes(i))} for i in ids]
    return json_response({"tokens": pieces})


async def detokenize(request: web.Request) -> web.Response:
    body = parse_object(await request.read())
    ids = body.get("tokens", [])
    if not isinstance(ids, list):
        raise RequestError(type_error("array", ids))
    for token_id in ids:
        if not isinstance(token_id, int):
            raise RequestError(type_error("number", token_id))
    return json_response({"content": loaded(request).tokenizer.detokenize(ids)})


def _content(content: object) -> str | list[str | int]:
    """The text to tokenise, or texts and ids mixed; booleans in a list count as 0 and 1."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(type_error("string", content))
    for part in content:
        if not isinstance(part, str | int):
            raise RequestError(type_error("number", part))
    return [part if isinstance(part, str) else int(part) for part in content]


def _piece(raw: bytes) -> str | list[int]:
    """Text where the bytes are UTF-8, else the bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


ROUTES: tuple[Route, ...] = (
    post(completion, "/completion", "/completions"),
    post(tokenize, "/tokenize"),
    post(detokenize, "/detokenize"),
    post(apply_template, "/apply-template"),
)
