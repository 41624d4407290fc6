"""Arguments of XML tool calls: text between tags to JSON, typed by the tool's schema.

The model writes ``<parameter=n>`` values without JSON quoting, so only the schema tells the string
``"12"`` from the number 12. A value that does not fit its schema becomes a string: never dropped.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, Protocol

ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_MAX_REF_DEPTH = 16
_NUMBER = re.compile(r"\s*(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)", re.ASCII)


class ToolSchemas:
    """The declared tools by name, with the types each parameter may take."""

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        functions = [tool["function"] for tool in tools]
        self._parameters = {f["name"]: f.get("parameters") for f in functions}

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parameters)

    def value_types(self, name: str, parameter: str) -> frozenset[str]:
        """JSON types of one parameter; all of them where the schema does not say."""
        root = self._parameters[name]
        properties = root.get("properties") if isinstance(root, Mapping) else None
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        return _types(schema, root, _MAX_REF_DEPTH)


class ValueWriter(Protocol):
    """Turns the text of one value, piece by piece, into JSON text."""

    def add(self, text: str) -> str: ...

    def end(self) -> str:
        """The rest of the JSON of a complete value."""

    def cut(self) -> str:
        """What else to show of a value that the end of the reply cut off."""


class StringWriter:
    """Text verbatim; the caller has written the opening quote."""

    def add(self, text: str) -> str:
        return quoted(text)[1:-1]

    def end(self) -> str:
        return '"'

    def cut(self) -> str:
        return ""


class NumberWriter:
    """Digits as they come. ``leftover`` is what follows the number and is none of it."""

    def __init__(self) -> None:
        self.leftover = ""
        self._text = ""
        self._n_written = 0

    def add(self, text: str) -> str:
        self._text += text
        number = _NUMBER.match(self._text)
        written = number[1] if number else ""
        new = written[self._n_written :]
        self._n_written = len(written)
        return new

    def end(self) -> str:
        number = _NUMBER.match(self._text)
        if number is None:
            return quoted(self._text)
        self.leftover = self._text[number.end() :].strip()
        return ""

    def cut(self) -> str:
        return "" if self._n_written else self._text.strip()


class JsonWriter:
    """Waits for the whole value: valid JSON of an allowed type as it is, else a string."""

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._text = ""

    def add(self, text: str) -> str:
        self._text += text
        return ""

    def end(self) -> str:
        try:
            value = loads_strictly(self._text)
        except ValueError:
            return quoted(self._text)
        # Where text is allowed, JSON counts only if it is something the schema names besides.
        if "string" in self._types and not (_types_of(value) - {"string"}) & self._types:
            return quoted(self._text)
        return self._text.strip()

    def cut(self) -> str:
        return self._text


def writer_for(types: frozenset[str]) -> tuple[ValueWriter, str]:
    """A writer and the JSON text that opens its value."""
    if types == {"string"}:
        return StringWriter(), '"'
    if types <= {"integer", "number"}:
        return NumberWriter(), ""
    return JsonWriter(types), ""


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def loads_strictly(text: str) -> Any:
    """JSON without NaN and infinities; ValueError for anything else, deep nesting included."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _types(schema: Any, root: Any, depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return ALL_TYPES
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_resolve(reference, root), root, depth - 1)
    if "type" in schema:
        return _named_types(schema["type"])
    if isinstance(values := schema.get("enum"), list) and values:
        return frozenset().union(*map(_types_of, values))
    if "const" in schema:
        return _types_of(schema["const"])
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list) and choices:
            return frozenset().union(*(_types(choice, root, depth - 1) for choice in choices))
    if isinstance(parts := schema.get("allOf"), list) and parts:
        return ALL_TYPES.intersection(*(_types(part, root, depth - 1) for part in parts))
    return ALL_TYPES


def _named_types(named: Any) -> frozenset[str]:
    names = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    return frozenset(names) & ALL_TYPES or ALL_TYPES


def _types_of(value: Any) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int() | float():
            return frozenset({"integer", "number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def _resolve(reference: str, root: Any) -> Any:
    """The schema at a local reference such as ``#/$defs/name``; None if there is none."""
    if not reference.startswith("#"):
        return None
    schema = root
    for step in reference[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        schema = schema.get(key) if isinstance(schema, Mapping) else None
    return schema
