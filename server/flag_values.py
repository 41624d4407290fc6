"""How the text after a flag (or in a variable) becomes a value.

Each reader takes the text and returns the value or raises ValueError with what is wrong about it;
the parser puts the flag's name in front. Files named by a flag are read here, so that a missing
one stops the program before a model is loaded.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

Reader = Callable[[str], object]

_TRUE = frozenset({"true", "1", "on", "enabled"})
_FALSE = frozenset({"false", "0", "off", "disabled"})
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_INT32 = 2**31


def boolean(text: str) -> bool:
    """llama.cpp's words for on and off, lower case only."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"not a boolean: '{text}'")


def integer(text: str) -> int:
    """A 32-bit whole number."""
    try:
        value = int(text)
    except ValueError as error:
        raise ValueError(f"not a whole number: '{text}'") from error
    if not -_INT32 <= value < _INT32:
        raise ValueError(f"out of range: {text}")
    return value


def at_least(lowest: int, name: str) -> Reader:
    """A whole number >= ``lowest``."""

    def read(text: str) -> int:
        value = integer(text)
        if value < lowest:
            raise ValueError(f"error: invalid value for {name}")
        return value

    return read


def n_parallel(text: str) -> int:
    """Slots: -1 (auto) or at least 1."""
    value = integer(text)
    if value < -1 or value == 0:
        raise ValueError("error: invalid value for n_parallel")
    return value


def number(text: str) -> float:
    """A finite float."""
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(f"not a number: '{text}'") from error
    if not math.isfinite(value):
        raise ValueError(f"not a finite number: '{text}'")
    return value


def text(value: str) -> str:
    return value


def comma_list(value: str) -> tuple[str, ...]:
    """``a,b`` as a tuple, blanks around the commas dropped, empty parts left out."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def addresses(value: str) -> tuple[str, ...]:
    """A comma list with at least one entry."""
    found = comma_list(value)
    if not found:
        raise ValueError("no address given")
    return found


def choice(flag: str, *allowed: str) -> Reader:
    """One of ``allowed``; the message has llama.cpp's form."""

    def read(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"error: unknown value for {flag}: '{value}'")
        return value

    return read


def pooling(value: str) -> str:
    """A pooling type; ranking is one in llama.cpp."""
    if value == "rank":
        raise ValueError("not supported: a generative model has no ranking head")
    return str(choice("--pooling", "none", "mean", "cls", "last")(value))


def on_off_auto(flag: str) -> Reader:
    """``on``, ``off`` or ``auto``, in any of the words for them."""

    def read(value: str) -> str:
        if value in ("auto", "-1"):
            return "auto"
        try:
            return "on" if boolean(value) else "off"
        except ValueError as error:
            raise ValueError(f"error: unknown value for {flag}: '{value}'") from error

    return read


def on_off(flag: str) -> Reader:
    read_word = on_off_auto(flag)

    def read(value: str) -> bool:
        word = read_word(value)
        if word == "auto":
            raise ValueError(f"error: unknown value for {flag}: '{value}'")
        return word == "on"

    return read


def gpu_layers(value: str) -> int:
    """A count, or ``auto`` / ``all`` = -1."""
    return -1 if value in ("auto", "all") else integer(value)


def fit_target(value: str) -> int:
    """MiB per device; there is one device, so the first number counts."""
    return integer(value.split(",")[0])


def semicolon_list(value: str) -> list[str]:
    return [part for part in value.split(";") if part]


def json_object(value: str) -> dict[str, object]:
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ValueError("not a JSON object")
    return parsed


def file_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"error: failed to open file '{path}'") from error


def file_json(path: str) -> dict[str, object]:
    return json_object(file_text(path))


def key_file(path: str) -> tuple[str, ...]:
    """API keys, one a line; blank lines and lines that start with ``#`` are left out."""
    lines = file_text(path).splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def directory(path: str) -> str:
    if not Path(path).is_dir():
        raise ValueError(f"not a directory: {path}")
    return path


def reasoning_format(value: str) -> str:
    if value not in ("none", "deepseek", "deepseek-legacy", "auto"):
        raise ValueError(f"Unknown reasoning format: {value}")
    return value


def logit_bias(value: str) -> list[object]:
    """``15043+1.5`` or ``15043-1`` as the pair [id, bias]."""
    at = max(value.find("+"), value.find("-"))
    if at < 1 or not value[:at].isdigit():
        raise ValueError("error: invalid input format, use TOKEN_ID(+/-)BIAS")
    bias: object = False if value[at:] == "-inf" else number(value[at:])
    return [int(value[:at]), bias]


def overrides(value: str) -> dict[str, int | float | bool | str]:
    """``key=int:5,key2=str:a`` as a dict of typed values."""
    found: dict[str, int | float | bool | str] = {}
    for entry in value.split(","):
        key, equals, typed = entry.partition("=")
        kind, colon, raw = typed.partition(":")
        readers: dict[str, Reader] = {
            "int": integer,
            "float": number,
            "bool": boolean,
            "str": text,
        }
        if not (key and equals and colon and kind in readers):
            raise ValueError(f"invalid override '{entry}', use KEY=TYPE:VALUE")
        found[key] = readers[kind](raw)  # type: ignore[assignment]
    return found


def spec_types(value: str) -> tuple[str, ...]:
    """``--spec-type``: ``none`` is the empty tuple; only drafting without a second model."""
    names = tuple(name for name in comma_list(value) if name != "none")
    for name in names:
        if name != "draft-mtp" and not name.startswith("ngram-"):
            raise ValueError(f"speculative type '{name}' is not supported")
    return names


def unescape(value: str) -> str:
    r"""Resolve ``\n``, ``\r``, ``\t``, ``\'``, ``\"``, ``\\`` and ``\xHH``, as llama.cpp does."""
    out: list[str] = []
    i = 0
    while i < len(value):
        char, following = value[i], value[i + 1 : i + 2]
        if char == "\\" and following in _ESCAPES and following:
            out.append(_ESCAPES[following])
            i += 2
        elif char == "\\" and following == "x" and _is_hex(value[i + 2 : i + 4]):
            out.append(chr(int(value[i + 2 : i + 4], 16)))
            i += 4
        else:
            out.append(char)
            i += 1
    return "".join(out)


def _is_hex(digits: str) -> bool:
    return len(digits) == 2 and all(digit in "0123456789abcdefABCDEF" for digit in digits)
