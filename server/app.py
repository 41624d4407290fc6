"""The aiohttp application: routes, and the checks every request passes.

Order as in llama-server: CORS headers, OPTIONS, loading, key, route, handler. A wrong method is as
unknown as a wrong path. Errors of any kind leave as JSON.
"""

import asyncio
import logging

from aiohttp import web
from aiohttp.typedefs import Handler

from gguf_hybrid.errors import RequestError

from . import (
    absent,
    anthropic,
    embeddings,
    gcp,
    infill,
    info,
    native,
    openai_chat,
    openai_text,
    responses,
    slot_actions,
    web_page,
)
from .auth import PUBLIC_PATHS, has_valid_key
from .context import CONTEXT, Context, context_of
from .cors import allow_origin, preflight_headers
from .errors import error_response, invalid_key, loading, not_found, server_error
from .routes import Route
from .web_page import PAGE_PATHS

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 * 2**20


def all_routes() -> tuple[Route, ...]:
    """Every route of the API; the web page and Google's form depend on the configuration."""
    return (
        *info.ROUTES,
        *native.ROUTES,
        *openai_text.ROUTES,
        *openai_chat.ROUTES,
        *responses.ROUTES,
        *anthropic.ROUTES,
        *infill.ROUTES,
        *embeddings.ROUTES,
        *slot_actions.ROUTES,
        *absent.ROUTES,
    )


def create_app(context: Context) -> web.Application:
    """An application that answers 503 until ``context.model`` is set."""
    app = web.Application(
        middlewares=[errors_as_json, preflight, readiness, authentication, awake],
        client_max_size=MAX_BODY_BYTES,
    )
    app[CONTEXT] = context
    app.on_response_prepare.append(common_headers)
    prefix = context.config.api_prefix.rstrip("/")
    api = all_routes()
    extra = (*gcp.prediction_routes(context.config, api), *web_page.routes(context.config))
    for route in (*api, *extra):
        for path in route.paths:
            if route.method == "GET":
                app.router.add_get(prefix + path, route.handler, allow_head=True)
            else:
                app.router.add_route(route.method, prefix + path, route.handler)
    return app


async def common_headers(request: web.Request, response: web.StreamResponse) -> None:
    """What every response has, errors and streams included."""
    cors = context_of(request).config.cors
    response.headers["Server"] = "llama.cpp"
    origin = allow_origin(cors, request.headers.get("Origin", ""))
    if origin is not None:
        response.headers["Access-Control-Allow-Origin"] = origin
    if request.method == "HEAD":
        response.headers["Accept-Ranges"] = "bytes"


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever goes wrong ends here; an unforeseen exception is logged and is a 500."""
    try:
        return await handler(request)
    except RequestError as error:
        return error_response(error)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
        return error_response(not_found())
    except web.HTTPRequestEntityTooLarge:
        message = f"request body is larger than {MAX_BODY_BYTES} bytes"
        return error_response(RequestError(message, status=413))
    except web.RequestPayloadError as error:
        reason = " ".join(str(error).split())
        return error_response(RequestError(f"the body cannot be read: {reason}"))
    except TimeoutError:
        return error_response(RequestError("the request took too long to arrive", status=408))
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        return error_response(server_error(str(error) or type(error).__name__))


@web.middleware
async def preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
    """OPTIONS needs neither key nor model nor route."""
    if request.method != "OPTIONS":
        return await handler(request)
    headers = preflight_headers(context_of(request).config.cors)
    return web.Response(body=b"", headers={**headers, "Content-Type": "text/html"})


@web.middleware
async def readiness(request: web.Request, handler: Handler) -> web.StreamResponse:
    context = context_of(request)
    if context.model is None and context.failure is None:
        raise loading()
    return await handler(request)


@web.middleware
async def authentication(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Keys come before routes: an unknown path without a key is a 401."""
    keys = context_of(request).config.keys
    if keys and request.path not in PUBLIC_PATHS and not has_valid_key(request.headers, keys):
        raise invalid_key()
    async with asyncio.timeout(context_of(request).config.timeout):
        await request.read()
    return await handler(request)


@web.middleware
async def awake(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What only looks does not wake a sleeping model; everything else does, and waits for it."""
    context = context_of(request)
    path = request.path.removeprefix(context.config.api_prefix.rstrip("/"))
    looks = path in (*info.LOOKING, *PAGE_PATHS) or request.match_info.http_exception is not None
    if context.model is not None and context.model.worker.is_sleeping and not looks:
        await context.model.worker.call(lambda engine: None)
    return await handler(request)
