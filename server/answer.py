"""From engine events to an HTTP answer, whole or streamed, in any dialect.

A ``Dialect`` is the state of one answer: it is fed every event and says what to send for it. Adding
an API means writing one; everything about order, headers, errors, pings and disconnects is here.
Headers of a stream go out when the first prompt starts, so whatever fails before that is a plain
JSON error with its own status.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from gguf_hybrid.engine.request import Event
from gguf_hybrid.errors import RequestError

from . import sse
from .context import loaded
from .errors import error_object, json_response, server_error
from .generation import Generation, Prompts, Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Frame:
    """One piece of a stream: JSON data, with a name on the routes that name their events."""

    data: object
    event: str | None = None


class Dialect(Protocol):
    """One answer in one API's form."""

    last: bytes
    """Bytes that end a stream (``sse.DONE`` or nothing)."""

    def feed(self, index: int, event: Event) -> Iterable[Frame]:
        """Take in an event of choice ``index``; the frames a stream sends for it."""
        ...

    def whole(self) -> object:
        """The body of the answer that is not streamed; called when every choice is done."""
        ...

    def failure(self, error: RequestError) -> Frame:
        """The frame for an error after the headers are out."""
        ...


def error_frame(error: RequestError) -> Frame:
    """The usual ``Dialect.failure``."""
    return Frame({"error": error_object(error)})


async def answer(
    request: web.Request,
    worker: Worker,
    prompts: Prompts,
    dialect: Dialect,
    *,
    stream: bool,
    ping_interval: int,
) -> web.StreamResponse:
    """Run ``prompts`` and answer the HTTP request. Leaving early cancels them."""
    n_choices = sum(len(requests) for requests in prompts)
    with loaded(request).queue.entered(n_choices):
        async with Generation(worker, prompts) as generation:
            if stream:
                return await _streamed(request, generation, dialect, ping_interval)
            while not generation.finished:
                if (item := await generation.next()) is not None:
                    for _ in dialect.feed(*item):
                        pass
            return json_response(dialect.whole())


async def _streamed(
    request: web.Request, generation: Generation, dialect: Dialect, ping_interval: int
) -> web.StreamResponse:
    first = await generation.next()
    response = await sse.open_stream(request)
    timeout = ping_interval if ping_interval > 0 else None
    try:
        try:
            await _send(response, dialect, first)
            while not generation.finished:
                await _send(response, dialect, await generation.next(timeout))
            await response.write(dialect.last)
        except RequestError as error:
            await _send_failure(response, dialect, error)
        await response.write_eof()
    except ConnectionError as error:  # the client is gone: end the handler as aiohttp would
        raise asyncio.CancelledError from error
    except Exception as error:  # too late for a status: the stream itself has to say it
        log.exception("%s failed while streaming", request.path)
        await _send_failure(response, dialect, server_error(str(error) or type(error).__name__))
        await response.write_eof()
    return response


async def _send_failure(
    response: web.StreamResponse, dialect: Dialect, error: RequestError
) -> None:
    frame = dialect.failure(error)
    await response.write(sse.frame(frame.data, frame.event))


async def _send(
    response: web.StreamResponse, dialect: Dialect, item: tuple[int, Event] | None
) -> None:
    """Write what an event makes; nothing heard for a while makes a comment."""
    if item is None:
        await response.write(sse.PING)
        return
    frames = [sse.frame(frame.data, frame.event) for frame in dialect.feed(*item)]
    if frames:
        await response.write(b"".join(frames))
