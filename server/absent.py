"""Routes of features this server does not have, answered as llama-server does without them."""

from aiohttp import web

from gguf_hybrid.errors import RequestError

from .errors import json_response, not_found, not_supported, unsupported
from .jsontext import parse
from .routes import Route, delete, get, post


async def disabled(request: web.Request) -> web.Response:
    """Tools and the CORS proxy: off for good."""
    error = {"message": "this feature is disabled", "type": "feature_disabled"}
    return json_response({"error": error}, status=403)


async def no_decisions(request: web.Request) -> web.StreamResponse:
    raise not_supported("This model is not a decision model")


async def no_audio(request: web.Request) -> web.StreamResponse:
    raise not_supported("The current model does not support audio input.")


async def no_ranking(request: web.Request) -> web.StreamResponse:
    raise unsupported("reranking", "--reranking")


async def no_stream(request: web.Request) -> web.StreamResponse:
    """Resumable streams are not kept: none is ever found."""
    _conversation(request)
    raise not_found()


async def end_stream(request: web.Request) -> web.Response:
    _conversation(request)
    return web.Response(status=204, headers={"Content-Type": "application/json"})


async def find_streams(request: web.Request) -> web.Response:
    return json_response([])


async def adapters(request: web.Request) -> web.Response:
    """No adapter is ever loaded."""
    return json_response([])


async def set_adapters(request: web.Request) -> web.Response:
    if not isinstance(parse(await request.read()), list):
        raise RequestError("Request body must be an array")
    return json_response({"success": True})


def _conversation(request: web.Request) -> str:
    if not (conversation := request.query.get("conv_id", "")):
        raise RequestError("Missing conversation id in path")
    return conversation


ROUTES: tuple[Route, ...] = (
    get(disabled, "/tools", "/cors-proxy"),
    post(disabled, "/tools", "/cors-proxy"),
    post(no_decisions, "/v1/systemone"),
    post(no_audio, "/audio/transcriptions", "/v1/audio/transcriptions"),
    post(no_ranking, "/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
    get(no_stream, "/v1/stream"),
    delete(end_stream, "/v1/stream"),
    post(find_streams, "/v1/streams/lookup"),
    get(adapters, "/lora-adapters"),
    post(set_adapters, "/lora-adapters"),
)
