"""JSON schemas as llguidance rules, and the check that nothing in them is silently left out.

llguidance refuses most of what it cannot enforce and takes unknown keywords for annotations; the
walk here refuses every validation keyword it does not enforce, by name and place.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

from gguf_hybrid.errors import RequestError

# At most one blank, or one or two line ends with an indent, as llama.cpp's own grammars have it:
# a model cannot go on producing white space for ever.
WHITESPACE = r"[ ]|\n{1,2}[ \t]{0,20}"
_COMPILER = {"whitespace_pattern": WHITESPACE, "lenient": False}

MAX_DEPTH = 100

TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})

UNSUPPORTED = frozenset(
    {
        *("if", "then", "else", "not", "contains", "minContains", "maxContains", "uniqueItems"),
        *("dependencies", "dependentRequired", "dependentSchemas", "propertyNames"),
        *("unevaluatedProperties", "unevaluatedItems", "additionalItems", "contentSchema"),
        *("$dynamicRef", "$recursiveRef"),
    }
)

# Forms of them that ask for nothing, as generators of schemas like to write them.
_VACUOUS: dict[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
}

# Keywords whose value is a schema, a list of schemas, or schemas by name.
_ONE = ("items", "additionalProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")

Schema = dict[str, Any]


def schema_error(path: str, reason: str) -> RequestError:
    """The 400 of a schema; words and line break are llama.cpp's."""
    return RequestError(f"JSON schema conversion failed:\nJSON schema error at {path}: {reason}")


def json_rule(schema: object) -> str:
    """``%json …``: a Lark expression for the values of ``schema``.

    ``{}`` means any object. Raises RequestError for a schema that could not be enforced in full.
    """
    meant = enforceable(schema) or {"type": "object"}
    return "%json " + json.dumps({**meant, "x-guidance": _COMPILER})


def enforceable(schema: object) -> Schema:
    """A copy of ``schema`` without keywords that ask for nothing.

    Raises RequestError at the first keyword, type or reference that cannot be enforced.
    """
    if not isinstance(schema, dict):
        raise schema_error("#", "schema must be an object")
    _check_depth(schema)
    schema = copy.deepcopy(schema)
    for path, part in subschemas(schema):
        _modernise(part)
        for key in sorted(UNSUPPORTED & part.keys()):
            if part.pop(key) not in _VACUOUS.get(key, ()):
                raise schema_error(path, f"unsupported keyword {key!r}")
        _check_values(path, part)
        if "$ref" in part:
            _check_ref(path, part["$ref"])
    return schema


def _modernise(part: Schema) -> None:
    """``items`` with a list, as drafts before 2020 have it: exactly these elements.

    They would also allow more of them or fewer; llama.cpp makes a tuple of it as well.
    """
    if isinstance(items := part.get("items"), list) and "prefixItems" not in part:
        part |= {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        part.pop("additionalItems", None)


def _check_depth(schema: Schema) -> None:
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        nested = [part for part in level if isinstance(part, dict | list)]
        level = [x for part in nested for x in (part.values() if isinstance(part, dict) else part)]
        if not level:
            return
    raise schema_error("#", f"nested deeper than {MAX_DEPTH} levels")


def subschemas(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Every subschema with its place; a value in a schema's place that is none is an error."""
    stack: list[tuple[str, Any]] = [("#", schema)]
    seen: set[int] = set()
    while stack:
        path, part = stack.pop()
        if isinstance(part, bool) or id(part) in seen:
            continue
        seen.add(id(part))
        if not isinstance(part, dict):
            raise schema_error(path, "schema must be an object")
        yield path, part
        if "$ref" in part:
            stack.append((part["$ref"], resolve(path, part["$ref"], schema)))
        stack += [(f"{path}/{key}", part[key]) for key in _ONE if key in part]
        for key in _LISTS:
            stack += [(f"{path}/{key}/{i}", one) for i, one in enumerate(_list(path, key, part))]
        for key in _MAPS:
            stack += [(f"{path}/{key}/{name}", one) for name, one in _map(path, key, part)]


def _list(path: str, key: str, part: Schema) -> list[Any]:
    value = part.get(key, [])
    if not isinstance(value, list):
        raise schema_error(path, f"{key} must be a list")
    return value


def _map(path: str, key: str, part: Schema) -> list[tuple[str, Any]]:
    value = part.get(key, {})
    if not isinstance(value, dict):
        raise schema_error(path, f"{key} must be an object")
    return list(value.items())


def _check_values(path: str, part: Schema) -> None:
    types = part.get("type", [])
    for name in types if isinstance(types, list) else [types]:
        if not isinstance(name, str) or name not in TYPES:
            raise schema_error(path, f"unrecognized type {name}")
    if not all(isinstance(name, str) for name in _list(path, "required", part)):
        raise schema_error(path, "required must be a list of names")
    if "enum" in part and not _list(path, "enum", part):
        raise schema_error(path, "enum must not be empty")
    if not isinstance(part.get("pattern", ""), str):
        raise schema_error(path, "pattern must be a string")


def _check_ref(path: str, ref: object) -> None:
    if not isinstance(ref, str) or (ref != "#" and not ref.startswith("#/")):
        raise schema_error(path, f"unsupported $ref {ref}")


def resolve(path: str, ref: str, root: Schema) -> Any:
    """What a local reference such as ``#/$defs/x`` points at."""
    target: Any = root
    for key in ref.removeprefix("#").split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and key in map(str, range(len(target))):
            target = target[int(key)]
        elif isinstance(target, dict) and key in target:
            target = target[key]
        else:
            raise schema_error(path, f"cannot resolve $ref {ref}, {key} not found")
    return target
