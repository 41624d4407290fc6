"""What the log says about requests: one line per finished completion, one per HTTP answer."""

import logging

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from gguf_hybrid.engine.request import Done

log = logging.getLogger("gguf_hybrid.server.request")


def log_done(done: Done) -> None:
    """Prompt and generation times of a completion, as counts, milliseconds and rates."""
    t = done.timings
    log.info(
        "slot %d, request %d: prompt eval %.2f ms / %d tokens (%.2f per s, %d cached),"
        " eval %.2f ms / %d tokens (%.2f per s), ended by %s",
        done.id_slot,
        done.id,
        t.prompt_ms,
        t.prompt_n,
        _per_second(t.prompt_n, t.prompt_ms),
        t.cache_n,
        t.predicted_ms,
        t.predicted_n,
        _per_second(t.predicted_n - 1, t.predicted_ms),
        done.stop_type,
    )


class AccessLogger(AbstractAccessLogger):
    """Answers go to the debug log, so that probes and dashboards do not fill the log."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        self.logger.debug(
            "%s %s from %s: %d after %.3f s",
            request.method,
            request.path,
            request.remote,
            response.status,
            time,
        )

    @property
    def enabled(self) -> bool:
        return self.logger.isEnabledFor(logging.DEBUG)


def _per_second(n: int, ms: float) -> float:
    return 1000 * n / ms if ms > 0 and n > 0 else 0.0
