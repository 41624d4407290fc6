"""The web page at ``/``: plain files of this package, or those of ``--path DIR``.

Public like ``/health``: the page itself asks for the key. Nothing is fetched from elsewhere, and
the page may not: the policy allows this server only.
"""

from importlib.resources import files
from pathlib import Path

from aiohttp import web

from .config import ServerConfig
from .errors import not_found
from .routes import Route, get

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'"
_HEADERS = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}

PAGE = {path.name: path.read_bytes() for path in files(__package__).joinpath("ui").iterdir()}
"""The files of the page by name; read once, they are small."""

PAGE_PATHS = frozenset({"/", "/index.html", *(f"/ui/{name}" for name in PAGE)})


async def page(request: web.Request) -> web.Response:
    return _file("index.html")


async def asset(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    if name not in PAGE:
        raise not_found()
    return _file(name)


def _file(name: str) -> web.Response:
    headers = {**_HEADERS, "Content-Type": _TYPES[Path(name).suffix]}
    return web.Response(body=PAGE[name], headers=headers)


PAGE_ROUTES: tuple[Route, ...] = (get(page, "/", "/index.html"), get(asset, "/ui/{name}"))


def routes(config: ServerConfig) -> tuple[Route, ...]:
    """The page's routes; none with ``--no-ui``."""
    if not config.ui:
        return ()
    if config.static_path is None:
        return PAGE_ROUTES
    folder = Path(config.static_path).resolve()

    async def static(request: web.Request) -> web.StreamResponse:
        name = request.match_info.get("path") or "index.html"
        if "\0" in name:
            raise not_found()
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            raise not_found()
        return web.FileResponse(path)

    return (get(static, "/", "/{path:.+}"),)
