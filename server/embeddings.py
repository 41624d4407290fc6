"""Embeddings: llama.cpp's own form and OpenAI's.

Prompts go through the engine like any others, beside completions. Vectors are normalised here, and
only where a prompt has one: without pooling there is one per token, as the model made it.
"""

import asyncio
import base64
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from aiohttp import web

from gguf_hybrid.engine.pooling import Pooling
from gguf_hybrid.engine.request import Embedded, Event, Request
from gguf_hybrid.errors import RequestError
from gguf_hybrid.memory.store import Floats

from .answer import Frame, answer, error_frame
from .completion import make_completions
from .context import Loaded, loaded
from .errors import unsupported
from .jsontext import parse_object, type_error
from .prompts import tokenize_prompts
from .results import Json
from .routes import Route, post

_INT16 = 32760.0
"""What the largest element becomes with ``embd_normalize`` 0."""


@dataclass(frozen=True, slots=True)
class EmbeddingParams:
    """What a body asks for. ``embd_normalize``: -1 nothing, 0 the largest element, 1 taxicab,
    2 euclidean, any other p the p-norm."""

    prompt: object
    native: bool
    base64: bool
    embd_normalize: int


async def embedding(request: web.Request) -> web.StreamResponse:
    return await _embed(request, native=True)


async def openai_embedding(request: web.Request) -> web.StreamResponse:
    return await _embed(request, native=False)


async def _embed(request: web.Request, *, native: bool) -> web.StreamResponse:
    model = loaded(request)
    pooling = model.runtime.pooling
    if pooling is None:
        raise unsupported("embeddings", "--embeddings")
    if pooling is Pooling.NONE and not native:
        raise RequestError(
            "Pooling type 'none' is not OAI compatible. Please use a different pooling type"
        )
    body = parse_object(await request.read())
    params = read_params(body, native=native, embd_normalize=model.config.embd_normalize)
    requests = await asyncio.to_thread(make_requests, model, params.prompt, pooling)
    return await answer(
        request,
        model.worker,
        [[each] for each in requests],
        EmbeddingAnswer(model, body, params, pooling, len(requests)),
        stream=False,
        ping_interval=-1,
    )


def read_params(body: Json, *, native: bool, embd_normalize: int) -> EmbeddingParams:
    """RequestError (400) for what is missing or of another type. ``content`` is llama.cpp's own
    field: it makes the answer native on every route."""
    if "input" not in body and "content" not in body:
        raise RequestError('"input" or "content" must be provided')
    native = native or "input" not in body
    prompt = body.get("input", body.get("content"))
    encoding = body.get("encoding_format", "float")
    if not isinstance(encoding, str):
        raise RequestError(type_error("string", encoding))
    if encoding not in ("float", "base64"):
        raise RequestError("The format to return the embeddings in. Can be either float or base64")
    p = body.get("embd_normalize", embd_normalize)
    if not isinstance(p, int | float):
        raise RequestError(type_error("number", p))
    return EmbeddingParams(prompt, native, encoding == "base64", int(p))


def make_requests(model: Loaded, prompt: object, pooling: Pooling) -> list[Request]:
    """One engine request for each input. RequestError (400) where there is nothing to read."""
    if prompt == []:
        raise RequestError('"input" must not be empty')
    prompts = tokenize_prompts(model.tokenizer, prompt)
    if not all(prompts):
        raise RequestError("Input content cannot be empty")
    params = replace(model.schema.defaults, cache_prompt=False, return_progress=False)
    completions = make_completions(model, params, prompts, kind="embedding")
    return [replace(choice.request, pooling=pooling) for (choice,) in completions]


class EmbeddingAnswer:
    """The vectors of all inputs, in their order."""

    last = b""

    def __init__(
        self, model: Loaded, body: Json, params: EmbeddingParams, pooling: Pooling, n_inputs: int
    ) -> None:
        name = body.get("model")
        self._model_name = name if isinstance(name, str) else model.model_name
        self._params = params
        self._pooled = pooling is not Pooling.NONE
        self._vectors: list[Floats] = [np.empty((0, 0), np.float32)] * n_inputs
        self._n_tokens = 0

    def feed(self, index: int, event: Event) -> Iterable[Frame]:
        if isinstance(event, Embedded):
            p = self._params.embd_normalize
            vectors = event.vectors
            self._vectors[index] = normalized(vectors, p) if self._pooled else vectors
            self._n_tokens += event.n_tokens
        return []

    def whole(self) -> object:
        if self._params.native:
            return [{"index": i, "embedding": v.tolist()} for i, v in enumerate(self._vectors)]
        return {
            "model": self._model_name,
            "object": "list",
            "usage": {"prompt_tokens": self._n_tokens, "total_tokens": self._n_tokens},
            "data": [self._item(i, vectors[0]) for i, vectors in enumerate(self._vectors)],
        }

    def failure(self, error: RequestError) -> Frame:
        return error_frame(error)

    def _item(self, index: int, vector: Floats) -> Json:
        item: Json = {"embedding": vector.tolist(), "index": index, "object": "embedding"}
        if self._params.base64:
            raw = vector.astype("<f4").tobytes()
            item |= {"embedding": base64.b64encode(raw).decode(), "encoding_format": "base64"}
        return item


def normalized(vectors: Floats, p: int) -> Floats:
    """Each row divided by its norm, as llama.cpp numbers them; a norm that is zero or beyond
    float64 makes zeros."""
    if p == -1:
        return vectors
    size = np.abs(vectors.astype(np.float64))
    if p == 0:
        norms = size.max(axis=-1, keepdims=True) / _INT16
    else:
        with np.errstate(all="ignore"):
            norms = (size ** float(p)).sum(axis=-1, keepdims=True) ** (1.0 / p)
    scale = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    scaled: Floats = vectors * scale.astype(np.float32)
    return scaled


ROUTES: tuple[Route, ...] = (
    post(embedding, "/embedding", "/embeddings"),
    post(openai_embedding, "/v1/embeddings"),
)
