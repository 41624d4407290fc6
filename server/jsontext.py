"""JSON in and out of the wire: compact text out, strict parsing with llama.cpp's messages in.

Bodies come from anyone: parsing never raises anything but RequestError, whatever the nesting, the
length of a number or the bytes. Of duplicate keys the last one counts, as in llama.cpp.
"""

import json
import math
import re
from typing import NoReturn

from gguf_hybrid.errors import RequestError

_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_EMPTY = (
    "attempting to parse an empty input;"
    " check that your input string or stream contains the expected JSON"
)


def dump(value: object) -> bytes:
    """Compact UTF-8; a float that is not finite is null, a lone surrogate is U+FFFD."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", errors="surrogatepass").decode("utf-8", "replace").encode()


def parse(raw: bytes) -> object:
    """The value of a request body. RequestError (400) in llama.cpp's form where it is not JSON."""
    if not raw.strip():
        raise _parse_error(_EMPTY, 1, 1)
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_int=_integer, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _parse_error(f"invalid UTF-8 byte at {error.start}", 1, error.start + 1) from error
    except json.JSONDecodeError as error:
        raise _parse_error(f"syntax error: {error.msg}", error.lineno, error.colno) from error
    except RecursionError as error:
        raise _parse_error("nested too deeply", 1, 1) from error
    except ValueError as error:  # a number of thousands of digits, NaN, Infinity
        raise _parse_error(f"syntax error: {error}", 1, 1) from error
    if b"\\u" in raw and _has_lone_surrogate(value):
        raise _parse_error("syntax error: a surrogate stands alone", 1, 1)
    return value


def parse_object(raw: bytes) -> dict[str, object]:
    """``parse`` for bodies that must be an object."""
    value = parse(raw)
    if not isinstance(value, dict):
        raise RequestError(
            f"[json.exception.type_error.304] cannot use at() with {type_name(value)}"
        )
    return value


def type_name(value: object) -> str:
    """What llama.cpp's messages call the type of a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case dict():
            return "object"
        case _:
            return "array"


def type_error(wanted: str, value: object) -> str:
    """The message for a value of another type than ``wanted``."""
    got = type_name(value)
    return f"[json.exception.type_error.302] type must be {wanted}, but is {got}"


def missing_key(key: str) -> RequestError:
    return RequestError(f"[json.exception.out_of_range.403] key '{key}' not found")


def required(body: dict[str, object], key: str) -> object:
    """The value of ``key``; RequestError (400) when the client left it out."""
    if key not in body:
        raise missing_key(key)
    return body[key]


def string(body: dict[str, object], key: str) -> str:
    """A required string."""
    value = required(body, key)
    if not isinstance(value, str):
        raise RequestError(type_error("string", value))
    return value


def _parse_error(what: str, line: int, column: int) -> RequestError:
    return RequestError(
        f"[json.exception.parse_error.101] parse error at line {line}, column {column}: {what}"
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"invalid literal {name}")


def _integer(text: str) -> int | float:
    """Whole numbers beyond 64 bits are floats, as in llama.cpp; ValueError where that fails."""
    number = int(text)
    if -(2**63) <= number < 2**64:
        return number
    if math.isinf(rounded := float(text)):
        raise ValueError(f"number overflow parsing '{text[:40]}'")
    return rounded


def _has_lone_surrogate(value: object) -> bool:
    return _LONE_SURROGATE.search(json.dumps(value, ensure_ascii=False)) is not None


def _finite(value: object) -> object:
    match value:
        case float():
            return value if value - value == 0 else None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value
