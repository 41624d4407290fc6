"""Error bodies as llama-server writes them, and the responses that carry them."""

from aiohttp import web

from gguf_hybrid.errors import RequestError

from .jsontext import dump

JSON_TYPE = "application/json; charset=utf-8"


class QueueFull(RequestError):
    """More requests wait than ``--queue-limit`` allows; ``retry_after`` is in seconds."""

    status = 503
    kind = "unavailable_error"
    retry_after = 1

    def __init__(self) -> None:
        super().__init__("too many requests are waiting, try again later")


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=dump(value), status=status, headers={"Content-Type": JSON_TYPE})


def error_object(error: RequestError) -> dict[str, object]:
    """``{"code","message","type"}`` and what the error adds (token counts of an overflow)."""
    return {
        "code": error.status,
        "message": str(error),
        "type": error.kind,
        **error.extra,
    }


def error_response(error: RequestError) -> web.Response:
    response = json_response({"error": error_object(error)}, error.status)
    if isinstance(error, QueueFull):
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def not_found() -> RequestError:
    return RequestError("File Not Found", status=404, kind="not_found_error")


def loading() -> RequestError:
    return RequestError("Loading model", status=503, kind="unavailable_error")


def invalid_key() -> RequestError:
    return RequestError("Invalid API Key", status=401, kind="authentication_error")


def unsupported(feature: str, flag: str) -> RequestError:
    """501 for what a flag would switch on; the sentence names the flag, people search for it."""
    return not_supported(f"This server does not support {feature}. Start it with `{flag}`")


def not_supported(message: str) -> RequestError:
    return RequestError(message, status=501, kind="not_supported_error")


def unavailable(message: str) -> RequestError:
    return RequestError(message, status=503, kind="unavailable_error")


def server_error(message: str) -> RequestError:
    return RequestError(message, status=500, kind="server_error")
