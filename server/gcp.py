"""Google Cloud's prediction form (``AIP_MODE=PREDICTION``): several bodies in one request.

Each instance names its route by ``@requestFormat`` (``chatCompletions``, or a path) and is sent to
this server itself, so that whatever holds for a request holds for it too.
"""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from gguf_hybrid.errors import ConfigError, RequestError

from .config import ServerConfig
from .context import context_of
from .errors import error_object, json_response
from .info import health
from .jsontext import dump, parse
from .routes import Route, get, post

_FORMAT = "@requestFormat"
_MAX_INSTANCES = 128
_PASSED_ON = ("Authorization", "X-Api-Key")


def prediction_routes(config: ServerConfig, others: Iterable[Route]) -> tuple[Route, ...]:
    """The prediction route over ``others``, and the health route if one is asked for."""
    prediction = config.prediction
    if prediction is None:
        return ()
    paths = [path for route in others if route.method == "POST" for path in route.paths]
    if prediction.predict_route in paths:
        raise ConfigError(f"AIP_PREDICT_ROUTE: {prediction.predict_route} is a route already")
    by_name = {name: path for path in paths for name in (path, request_format(path))}

    async def predict(request: web.Request) -> web.Response:
        return await _predict(request, by_name)

    extra = (get(health, prediction.health_route),) if prediction.health_route else ()
    return (post(predict, prediction.predict_route), *extra)


def request_format(path: str) -> str:
    """``/v1/chat/completions`` as ``chatCompletions``; path parameters are left out."""
    words: list[str] = re.findall(r"[^/_-]+", path.removeprefix("/v1").partition("{")[0])
    first, *rest = words
    return first + "".join(word[0].upper() + word[1:] for word in rest)


async def _predict(request: web.Request, paths: Mapping[str, str]) -> web.Response:
    instances = _instances(parse(await request.read()))
    async with _client(request) as client:
        answers = [_answer(client, request, paths, instance) for instance in instances]
        return json_response({"predictions": await asyncio.gather(*answers)})


def _instances(body: object) -> list[object]:
    if not isinstance(body, dict):
        raise RequestError("request body must be a JSON object")
    instances = body.get("instances")
    if not isinstance(instances, list):
        raise RequestError("request body must include an array field named instances")
    if len(instances) > _MAX_INSTANCES:
        raise RequestError(f"instances array exceeds maximum size of {_MAX_INSTANCES}")
    return instances


def _client(request: web.Request) -> aiohttp.ClientSession:
    headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    # The certificate is this server's own; the address need not be in it.
    connector = aiohttp.TCPConnector(ssl=False, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout)


async def _answer(
    client: aiohttp.ClientSession, request: web.Request, paths: Mapping[str, str], instance: object
) -> Any:
    """The answer to one instance, or its error in the same place."""
    try:
        path, body = _call(paths, instance)
    except RequestError as error:
        return {"error": error_object(error)}
    prefix = context_of(request).config.api_prefix.rstrip("/")
    async with client.post(f"{_own_address(request)}{prefix}{path}", data=dump(body)) as response:
        text = await response.text()
    try:
        return json.loads(text)
    except ValueError:
        return text


def _call(paths: Mapping[str, str], instance: object) -> tuple[str, dict[str, Any]]:
    if not isinstance(instance, dict):
        raise RequestError("each instance must be a JSON object")
    name = instance.get(_FORMAT)
    if not isinstance(name, str):
        raise RequestError(f"each instance must include a string {_FORMAT}")
    if name not in paths:
        raise RequestError(f"no handler registered for {_FORMAT}: {name}")
    body = {key: value for key, value in instance.items() if key != _FORMAT}
    return paths[name], {**body, "stream": False} if "stream" in body else body


def _own_address(request: web.Request) -> str:
    """Where this very request came in."""
    assert request.transport is not None
    host, port, *_ = request.transport.get_extra_info("sockname")
    return f"{request.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
