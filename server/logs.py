"""The log: one line per record on stderr, as ``--log-*`` and ``-v`` ask for."""

import json
import logging
import os
import sys
import time

from aiohttp import web
from aiohttp.http import HttpProcessingError

from gguf_hybrid.errors import ConfigError

from .config import LogConfig
from .log_writer import LineWriter

log = logging.getLogger(__name__)

_LETTERS = {logging.ERROR: "E", logging.WARNING: "W", logging.INFO: "I", logging.DEBUG: "D"}
_DEBUG_VERBOSITY = 4


class LineFormatter(logging.Formatter):
    """``0.00.012.345 I text``: time since the start as minutes.seconds.milli.micro, level, text."""

    def __init__(self, config: LogConfig) -> None:
        super().__init__()
        self._config = config
        self._start = time.time()

    def format(self, record: logging.LogRecord) -> str:
        parts = []
        if self._config.timestamps:
            parts.append(_elapsed(record.created - self._start))
        if self._config.prefix:
            parts.append(_LETTERS.get(record.levelno, "I"))
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return " ".join([*parts, text])


class JsonFormatter(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "timestamp": record.created,
            "level": record.levelname,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def note_client_faults(record: logging.LogRecord) -> bool:
    """Filter for aiohttp's log: what a client did wrong is a line of debugging, no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError):
        return True
    log.debug("%s: %s", record.getMessage(), " ".join(str(error).split()))
    return False


def set_up(config: LogConfig) -> None:
    """Route the package's log; nothing else logs below warnings. ConfigError for ``--log-file``."""
    root = logging.getLogger()
    root.handlers.clear()
    if config.disabled:
        root.addHandler(logging.NullHandler())
        return
    handlers = [LineWriter((sys.stdout if config.jsonl else sys.stderr).fileno())]
    if config.file is not None:
        handlers.append(LineWriter(_opened(config.file)))
    formatter = JsonFormatter() if config.jsonl else LineFormatter(config)
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").filters[:] = [note_client_faults]
    logging.getLogger("gguf_hybrid").setLevel(level_of(config.verbosity))


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        raise ConfigError(f"error: --log-file {path}: {error.strerror or error}") from error


def level_of(verbosity: int) -> int:
    """llama.cpp's 1 … 3 as levels; 0 leaves errors."""
    if verbosity >= _DEBUG_VERBOSITY:
        return logging.DEBUG
    return {3: logging.INFO, 2: logging.WARNING}.get(verbosity, logging.ERROR)


def _elapsed(seconds: float) -> str:
    micros = max(0, int(seconds * 1e6))
    minutes, rest = divmod(micros, 60_000_000)
    whole, fraction = divmod(rest, 1_000_000)
    return f"{minutes}.{whole:02d}.{fraction // 1000:03d}.{fraction % 1000:03d}"
