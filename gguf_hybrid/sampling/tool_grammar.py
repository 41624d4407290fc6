"""Tool calls of the Qwen3.5 form as a grammar, typed by the tools' schemas.

    <tool_call>
    <function=NAME>
    <parameter=P>
    VALUE
    </parameter>
    </function>
    </tool_call>

A value that may be a string is taken verbatim up to the line that closes it; any other value is
JSON. Parameters come in any order, each once, the required ones all. ``format`` of a verbatim
string is an annotation, as JSON Schema has it by default.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .json_schema import Schema, enforceable, json_rule, resolve, schema_error, subschemas
from .lark import OPTIONS, quoted

CALL = "<tool_call>"
VALUE_END = "\n</parameter>\n"

_SPACE = r"SPACE: /([ ]|\n{1,2}[ \t]{0,20})?/"
_VERBATIM = r"verbatim[lazy]: /(?s:.*)\n<\/parameter>\n/"
_ENDS_ONCE = r"~/(?s:.*)\n<\/parameter>\n(?s:.+)/"

# Keywords of a tool's ``parameters`` besides annotations; the set of parameters is checked by them.
_UNSUPPORTED_AT_TOP = frozenset(
    {"anyOf", "oneOf", "allOf", "$ref", "patternProperties", "minProperties", "maxProperties"}
)
_MAX_PARAMETERS = 64  # the bits of a rule's argument
_MAX_REF_DEPTH = 16


def lark_of_tools(
    tools: Sequence[Mapping[str, Any]], *, parallel: bool, free_text: bool = False
) -> str:
    """One call, or with ``parallel`` one or more, of ``tools`` (their ``function`` objects).

    ``free_text``: anything may come before the first call, thinking included. Without it the
    output begins with the call: the form for a grammar that a ``<tool_call>`` wakes.
    Raises RequestError for a schema that could not be enforced.
    """
    writer = _Writer()
    functions = " | ".join(writer.function(tool) for tool in tools)
    more = "(SPACE CALL body)*" if parallel else ""
    head = "text_to_call" if free_text else "CALL"
    lines = [
        f"start: {head} body {more} SPACE",
        f"body: {quoted(chr(10) + '<function=')} ({functions}) "
        + quoted("</function>\n</tool_call>"),
        f"CALL: {quoted(CALL)}",
        _SPACE,
        _VERBATIM,
        f"text_to_call[lazy]: /(?s:.*){CALL}/",
    ]
    return OPTIONS + "\n".join(lines + writer.rules) + "\n"


class _Writer:
    """Collects the rules of functions and parameters under fresh names."""

    def __init__(self) -> None:
        self.rules: list[str] = []

    def _rule(self, body: str, *, terminal: bool = False) -> str:
        name = f"{'T' if terminal else 't'}{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def function(self, tool: Mapping[str, Any]) -> str:
        schema = enforceable(tool.get("parameters") or {})
        _check_refs(schema)
        if unsupported := sorted(_UNSUPPORTED_AT_TOP & schema.keys()):
            raise schema_error("#", f"unsupported keyword {unsupported[0]!r} in tool parameters")
        return f"{quoted(tool['name'] + '>' + chr(10))} {self._parameters(schema)}"

    def _parameters(self, schema: Schema) -> str:
        """A rule whose argument has one bit for each parameter that has been given."""
        properties = schema.get("properties", {})
        required = list(dict.fromkeys(schema.get("required", [])))
        names = required + [name for name in properties if name not in required]
        if len(names) > _MAX_PARAMETERS:
            raise schema_error("#/properties", f"more than {_MAX_PARAMETERS} parameters")
        rule = f"params{len(self.rules)}"
        options = [f'"" %if is_ones([0:{len(required)}])' if required else '""']
        for bit, name in enumerate(names):
            value = self._rule(self._value(_part(properties.get(name, {}), schema)))
            opening = quoted(f"<parameter={name}>\n")
            options.append(f"{opening} {value} {rule}::set_bit({bit}) %if bit_clear({bit})")
        options += self._additional(schema, rule)
        if len(options) == 1:
            return '""'
        self.rules.append(f"{rule}::_ : " + "\n | ".join(options))
        return f"{rule}::0x0"

    def _additional(self, schema: Schema, rule: str) -> Iterator[str]:
        """Parameters of any other name, where the schema asks for them in so many words."""
        additional = schema.get("additionalProperties", False)
        if additional is not False:
            value = self._rule(self._value(_part({} if additional is True else additional, schema)))
            yield rf'"<parameter=" /[^>\n]+/ ">\n" {value} {rule}::_'

    def _value(self, schema: Schema, depth: int = 0) -> str:
        """A value with the line that closes it."""
        schema = _resolved(schema)
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return self._listed(values, schema)
        if (branches := _branches(schema)) and _may_be_text(schema):
            _check_depth(depth)
            values = [self._value(one, depth + 1) for one in branches]
            # Any text at all includes what the other branches allow.
            return "verbatim" if "verbatim" in values else " | ".join(map(self._rule, values))
        if _may_be_text(schema):
            return self._text(schema)
        return f"{json_rule(schema)} {quoted(VALUE_END)}"

    def _listed(self, values: Sequence[object], schema: Schema) -> str:
        texts = [value for value in values if isinstance(value, str)]
        others = [value for value in values if not isinstance(value, str)]
        options = [quoted(text + VALUE_END) for text in texts]
        if others:
            rest = {key: schema[key] for key in schema if key != "const"} | {"enum": others}
            options.append(f"{json_rule(rest)} {quoted(VALUE_END)}")
        return " | ".join(options)

    def _text(self, schema: Schema) -> str:
        limits = list(_text_limits(schema))
        if not limits:
            return "verbatim"
        allowed = self._rule(" & ".join(limits), terminal=True)
        return self._rule(f"({allowed} {quoted(VALUE_END)}) & {_ENDS_ONCE}", terminal=True)


def _part(schema: object, root: Schema) -> Schema:
    """A property's schema with the definitions its references need."""
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise schema_error("#/properties", f"unsupported schema {schema}")
    return {**schema, **{key: root[key] for key in ("$defs", "definitions") if key in root}}


def _resolved(schema: Schema) -> Schema:
    """``schema`` with a reference at its top followed; references lead to definitions only."""
    for _ in range(_MAX_REF_DEPTH):
        if "$ref" not in schema:
            return schema
        target = _part(resolve("#", schema["$ref"], schema), schema)
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        schema = target | siblings
    raise schema_error("#", "references without end")


def _check_refs(schema: Schema) -> None:
    """A parameter becomes a schema of its own, which takes the definitions with it only."""
    for path, part in subschemas(schema):
        if not part.get("$ref", "#/$defs/").startswith(("#/$defs/", "#/definitions/")):
            raise schema_error(path, f"unsupported $ref {part['$ref']} in tool parameters")


def _check_depth(depth: int) -> None:
    if depth > _MAX_REF_DEPTH:
        raise schema_error("#", "references without end")


def _branches(schema: Schema) -> list[Schema]:
    options = schema.get("anyOf") or schema.get("oneOf") or []
    return [_resolved(_part(option, schema)) for option in options]


def _may_be_text(schema: Schema, depth: int = 0) -> bool:
    """Whether a string is among the values: then the value stands there without quotes."""
    _check_depth(depth)
    types = schema.get("type")
    if types is None:
        if branches := _branches(schema):
            return any(_may_be_text(one, depth + 1) for one in branches)
        values = schema.get("enum", [schema["const"]] if "const" in schema else [""])
        structured = {"properties", "items", "prefixItems", "allOf", "minimum", "maximum"}
        return any(isinstance(value, str) for value in values) and not structured & schema.keys()
    return "string" in ([types] if isinstance(types, str) else types)


def _text_limits(schema: Schema) -> Iterator[str]:
    """The string keywords as regular expressions that all have to match."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        yield f"/(?s:.{{{least},{'' if most is None else most}}})/"
    if pattern := schema.get("pattern"):
        yield _search(pattern)


def _search(pattern: str) -> str:
    """A pattern matches anywhere in the text unless it is anchored."""
    starts, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
    inner = pattern[starts : len(pattern) - ends].replace("/", r"\/").replace("\n", r"\n")
    before, after = "" if starts else "(?s:.*)", "" if ends else "(?s:.*)"
    return f"/{before}({inner}){after}/"
