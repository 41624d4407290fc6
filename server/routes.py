"""The type of a route, and the table of all of them.

Adding an API: write a module with handlers and a ``ROUTES`` tuple, and name it in ``all_routes``.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """``method`` answers ``paths`` (below the API prefix). GET answers HEAD as well."""

    method: str
    paths: tuple[str, ...]
    handler: Handler


def get(handler: Handler, *paths: str) -> Route:
    return Route("GET", paths, handler)


def post(handler: Handler, *paths: str) -> Route:
    return Route("POST", paths, handler)


def delete(handler: Handler, *paths: str) -> Route:
    return Route("DELETE", paths, handler)
