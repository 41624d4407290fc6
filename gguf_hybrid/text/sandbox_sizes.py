"""How large a value of a chat template may become: checked before it is made.

A template comes with a model file and is not trusted. One call can ask for gigabytes
(``'a'.center(10**9)``), and a list that holds the last list twice doubles with every round of a
loop while taking no memory until it is printed. Everything here raises SecurityError.
"""

import re
from collections.abc import Iterable
from typing import Any

from jinja2 import Undefined
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.utils import Namespace, pass_environment

MAX_CHARS = 1 << 24
ELEMENT = 16
"""What an element weighs, in characters."""
MAX_BITS = 1 << 14
MAX_SPLIT_CHARS = 1 << 22
MAX_DIGITS = 64
MAX_INDENT = 1000

# Filters that make much out of little or have nothing to do with prompts.
DROPPED_FILTERS = frozenset(
    {
        "batch",
        "center",
        "filesizeformat",
        "forceescape",
        "groupby",
        "pprint",
        "random",
        "slice",
        "striptags",
        "urlencode",
        "urlize",
        "wordcount",
        "wordwrap",
        "xmlattr",
    }
)
DROPPED_GLOBALS = frozenset({"lipsum", "cycler", "joiner"})
_DROPPED_METHODS = frozenset({"translate", "maketrans", "encode", "decode"})
_WIDE = re.compile(r"\d{4}|\*|\{[^{}]*\{")


def check_size(n: int) -> None:
    if n > MAX_CHARS:
        raise SecurityError(f"a value of {n} characters")


class Scales:
    """Weighs containers: characters and elements of what they hold, shared parts counted each time.

    Weights are remembered by identity, so a container's parts are weighed once; that keeps the
    containers alive, which also keeps their identities from being used again.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}

    def weigh(self, value: Any) -> int:
        if isinstance(value, str | bytes):
            return ELEMENT + len(value)
        if isinstance(value, Namespace):
            return self._weigh_all(value._Namespace__attrs.values())  # it changes: not remembered
        if not isinstance(value, list | tuple | dict):
            return ELEMENT
        if id(value) not in self._known:
            parts = (*value, *value.values()) if isinstance(value, dict) else value
            self._known[id(value)] = value, self._weigh_all(parts)
        return self._known[id(value)][1]

    def _weigh_all(self, parts: Iterable[Any]) -> int:
        weight = ELEMENT
        for part in parts:
            weight += self.weigh(part)
            check_size(weight)
        return weight


def check_operation(operator: str, left: Any, right: Any, scales: Scales) -> None:
    """A binary operation of a template, about to be done."""
    if operator == "**":
        _check_power(left, right)
    elif operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
        elif hasattr(left, "__len__") or hasattr(right, "__len__"):
            parts, times = (left, right) if hasattr(left, "__len__") else (right, left)
            check_size(scales.weigh(parts) * times)
    elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        check_size(scales.weigh(left) + scales.weigh(right))
    elif operator == "%" and isinstance(left, str | bytes):
        arguments = right if isinstance(right, tuple) else (right,)
        check_format(left, arguments, scales)


def _check_power(left: Any, right: Any) -> None:
    if not isinstance(right, int) or right > MAX_DIGITS:
        raise SecurityError(f"an exponent above {MAX_DIGITS}")
    if isinstance(left, int):
        _check_bits(left.bit_length() * right)


def _check_bits(n: int) -> None:
    if n > MAX_BITS:
        raise SecurityError(f"a number of {n} bits")


def check_format(form: Any, arguments: Iterable[Any], scales: Scales) -> None:
    """``form % arguments`` or ``form.format(*arguments)``."""
    text = str(form)
    if _WIDE.search(text):
        raise SecurityError("a wide field in a format")
    n_fields = text.count("%") + text.count("{")
    check_size(len(text) + n_fields * sum(map(scales.weigh, arguments)))


def check_method(method: Any, arguments: tuple[Any, ...], scales: Scales) -> None:
    """A method of a string, about to be called with ``arguments``, those by name included."""
    text, name = method.__self__, method.__name__
    if name in _DROPPED_METHODS or isinstance(text, bytes):
        raise SecurityError(f"the method {name} of a string")
    if name in {"split", "rsplit", "splitlines"} and len(text) > MAX_SPLIT_CHARS:
        raise SecurityError(f"a text of {len(text)} characters to be split")
    if name == "join" and arguments:
        check_join(text, arguments[0], scales)
    elif name == "replace" and len(arguments) > 1:
        check_replace(text, arguments[0], arguments[1])
    elif name in {"format", "format_map"}:
        check_format(text, arguments, scales)
    elif name == "expandtabs":
        check_size(len(text) + text.count("\t") * _largest(arguments))
    else:
        check_size(_largest(arguments))


def check_join(separator: str, parts: Any, scales: Scales) -> None:
    """``separator.join(parts)``; a generator, which can be read only once, is refused."""
    if not hasattr(parts, "__len__"):
        raise SecurityError("join needs a list")
    check_size(scales.weigh(parts) + len(separator) * len(parts))


def check_replace(text: Any, old: Any, new: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    check_size(len(text) + text.count(old) * len(new))


def _largest(arguments: Iterable[Any]) -> int:
    return max((n for n in arguments if isinstance(n, int)), default=0)


# -- filters: Jinja's own, behind a check ---------------------------------------------------------


@pass_environment
def join_filter(environment: Environment, value: Any, d: Any = "", attribute: Any = None) -> str:
    """``join``, ended as soon as the text is too long."""
    get = make_attrgetter(environment, attribute) if attribute is not None else None
    texts, n = [], 0
    for part in value:
        texts.append(str(get(part) if get else part))
        n += len(texts[-1]) + len(str(d))
        check_size(n)
    return str(d).join(texts)


def replace_filter(value: Any, old: str, new: str, count: int | None = None) -> str:
    check_replace(value, old, new)
    return str(value).replace(str(old), str(new), -1 if count is None else count)


def format_filter(value: Any, *args: Any, **kwargs: Any) -> str:
    check_format(value, (*args, *kwargs.values()), Scales())
    return str(value) % (kwargs or args)


def indent_filter(value: Any, width: Any = 4, *args: Any, **kwargs: Any) -> str:
    width = width if isinstance(width, str) else " " * min(width, MAX_INDENT)
    check_size(len(value) + (1 + value.count("\n")) * len(width))
    return str(FILTERS["indent"](str(value), width, *args, **kwargs))


def round_filter(value: Any, precision: int = 0, method: Any = "common") -> Any:
    if abs(precision) > MAX_DIGITS:
        raise SecurityError(f"rounding to {precision} digits")
    return FILTERS["round"](value, precision, method)


@pass_environment
def sum_filter(
    environment: Environment, value: Iterable[Any], attribute: Any = None, start: Any = 0
) -> Any:
    """``sum`` of numbers."""
    get = make_attrgetter(environment, attribute) if attribute is not None else None
    numbers = [get(part) if get else part for part in value]
    if not all(isinstance(n, int | float | Undefined) for n in (start, *numbers)):
        raise SecurityError("sum of what are no numbers")
    return sum(numbers, start)


SIZED_FILTERS: dict[str, Any] = {
    "join": join_filter,
    "replace": replace_filter,
    "format": format_filter,
    "indent": indent_filter,
    "round": round_filter,
    "sum": sum_filter,
}
