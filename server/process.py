"""The life of the server process: listen, load, serve, stop.

The listener is up before the model is loaded, and the model is loaded on a thread of its own, so
that ``/health`` can say "loading" meanwhile. The first signal ends it with exit code 0, a second
one at once with 1; an engine that stops by itself ends it with an error.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
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
"""How long running answers may take to notice that they are cancelled."""

Load = Callable[[Arguments], Runtime]


class Process:
    """One server from start to exit code."""

    def __init__(self, arguments: Arguments, load: Load) -> None:
        self._arguments = arguments
        self._load = load
        self._context = Context(arguments.server)
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
            await runner.cleanup()
            if self._context.model is not None:
                self._context.model.runtime.close(timeout=SHUTDOWN_SECONDS)

    async def _serve(self) -> int:
        stopped: asyncio.Future[Any] = asyncio.create_task(self._stop.wait())
        loading: asyncio.Future[Any] = self._start_loading()
        await asyncio.wait({stopped, loading}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            return 0
        model = Loaded(loading.result(), self._arguments.server)
        self._context.model = model
        self._announce(model)
        failed: asyncio.Future[Any] = asyncio.create_task(model.worker.failed())
        await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
        if not failed.done():
            failed.cancel()
            return 0
        self._context.failure = str(failed.result())
        log.error("the engine has stopped: %s", self._context.failure)
        return 1

    def _start_loading(self) -> asyncio.Future[Runtime]:
        """Load on a daemon thread: a signal must not wait for a model nobody wants any more."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Runtime] = loop.create_future()

        def deliver(runtime: Runtime | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                assert runtime is not None
                future.set_result(runtime)

        def load() -> None:
            try:
                outcome: tuple[Runtime | None, BaseException | None] = (
                    self._load(self._arguments),
                    None,
                )
            except BaseException as error:  # re-raised where the result is awaited
                outcome = (None, error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, *outcome)

        threading.Thread(target=load, name="load", daemon=True).start()
        return future

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
