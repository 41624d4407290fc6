"""Server-sent events: frames, and the response they go into."""

from aiohttp import web

from .jsontext import dump

PING = b":\n\n"
DONE = b"data: [DONE]\n\n"
_HEADERS = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}


def frame(data: object, event: str | None = None) -> bytes:
    """One frame; ``event`` names it on the routes that name events."""
    named = b"" if event is None else f"event: {event}\n".encode()
    return b"%sdata: %s\n\n" % (named, dump(data))


async def open_stream(request: web.Request) -> web.StreamResponse:
    """Send the headers of an event stream."""
    response = web.StreamResponse(headers=_HEADERS)
    await response.prepare(request)
    return response
