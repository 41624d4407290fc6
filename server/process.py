"""The life of the server process: listen, load, serve, stop.

The listener is up before the model is loaded, and loading happens on other threads, so that
``/health`` can say "loading" meanwhile. The first signal ends it with exit code 0, a second
one at once with 1; an engine that stops by itself ends it with an error.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import web

from gguf_hybrid.errors import GgufHybridError

from .app import create_app
from .args import Arguments
from .context import Context, Loaded, Runtime
from .listen import start_sites
from .request_log import AccessLogger

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 1.0
"""How long running answers may take to end, and the engine to end its pass."""

OnFailure = Callable[[BaseException], None]
Load = Callable[[Arguments, OnFailure], Coroutine[Any, Any, Runtime]]


class Process:
    """One server from start to exit code."""

    def __init__(self, arguments: Arguments, load: Load) -> None:
        self._arguments = arguments
        self._load = load
        self._context = Context(arguments.server)
        self._runtime: Runtime | None = None
        self._stop = asyncio.Event()
        self._signals = 0

    async def run(self) -> int:
        """Serve until told to stop; the exit code."""
        runner = web.AppRunner(
            create_app(self._context),
            handler_cancellation=True,
            access_log_class=AccessLogger,
            access_log=logging.getLogger("gguf_hybrid.server.access"),
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        await runner.setup()
        self._catch_signals()
        try:
            for url in await start_sites(runner, self._arguments.server):
                log.info("listening on %s", url)
            return await self._serve()
        except GgufHybridError as error:
            log.error("%s", error)
            return 1
        finally:
            await asyncio.gather(runner.cleanup(), self._close_runtime())

    async def _serve(self) -> int:
        stopped: asyncio.Future[Any] = asyncio.create_task(self._stop.wait())
        loading: asyncio.Future[Any] = asyncio.create_task(
            self._load(self._arguments, self._on_failure)
        )
        await asyncio.wait({stopped, loading}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            loading.cancel()
            return 0
        self._runtime = loading.result()
        model = Loaded(self._runtime, self._arguments.server)
        self._context.model = model
        self._announce(model)
        await stopped
        return 0 if self._context.failure is None else 1

    def _on_failure(self, error: BaseException) -> None:
        """The engine has stopped by itself: say so, and end."""
        self._context.failure = f"{type(error).__name__}: {error}"
        log.error("the engine has stopped: %s", self._context.failure)
        self._stop.set()

    async def _close_runtime(self) -> None:
        if self._runtime is not None:
            await self._runtime.close(timeout=SHUTDOWN_SECONDS)

    def _announce(self, model: Loaded) -> None:
        limits = model.runtime.limits
        log.info(
            "model %s loaded: %d slots of %d tokens",
            model.model_name,
            limits.n_slots,
            limits.n_ctx,
        )

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(1)
        log.info("stopping")
        self._stop.set()
