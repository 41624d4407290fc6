"""Cross-origin headers, as ``--cors-*`` ask for them."""

from urllib.parse import urlsplit

from .config import CorsConfig

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def allow_origin(config: CorsConfig, origin: str) -> str | None:
    """Value of ``Access-Control-Allow-Origin`` for a request's ``Origin``; None sends no header.

    With credentials ``*`` may not be sent, so the origin is echoed, empty when there was none.
    """
    match config.origins:
        case "*":
            return origin if config.credentials else "*"
        case "localhost":
            return origin if _is_local(origin) else None
        case literal:
            return literal


def preflight_headers(config: CorsConfig) -> dict[str, str]:
    """What only the answer to ``OPTIONS`` has."""
    return {
        "Access-Control-Allow-Credentials": "true" if config.credentials else "false",
        "Access-Control-Allow-Methods": config.methods,
        "Access-Control-Allow-Headers": config.headers,
    }


def _is_local(origin: str) -> bool:
    try:
        return urlsplit(origin).hostname in _LOCAL_HOSTS
    except ValueError:  # a port that is no number, a bracket that does not close
        return False
