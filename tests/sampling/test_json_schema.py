"""JSON schemas: what is sampled under one is valid, what cannot be enforced is refused by name."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_hybrid.errors import RequestError
from gguf_hybrid.sampling.grammar import Grammar, Thinking
from gguf_hybrid.sampling.json_schema import enforceable

WORD = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "maxLength": 12},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["word", "n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        (WORD, ['{ "word": " mean? It is", "n" :12 }'], ['{"word": "a"}', '{"word":"a","n":100}']),
        (
            {"type": "array", "items": {"enum": ["no", "yes"]}, "minItems": 2, "maxItems": 2},
            ['[ "yes", "yes" ]', '["no",\n\n  "yes"]'],
            ['["no"]', '["no","ab"]', '["no","no","no"]'],
        ),
        ({}, ["{ }", '{"a": [1, null]}'], ["[]", "3", ""]),
        ({"type": "object"}, ['{"a":{}}'], ["[]"]),
        (
            {"patternProperties": {"^s_": {"type": "string"}}, "additionalProperties": False}
            | {"type": "object"},
            ['{"s_a": "x"}', "{}"],
            ['{"s_a": 1}', '{"a": "x"}'],
        ),
        (
            {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"c": {
                "$ref": "#/$defs/n"}}, "additionalProperties": False}}},
            ['{"c": {"c": {}}}'],
            ['{"c": {"d": {}}}'],
        ),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 5000}, ["[1,2]"], ["[1,]"]),
        (
            {"items": [{"type": "integer"}, {"const": "a"}], "additionalItems": False},
            ['[1,"a"]'],
            ["[1]", '[1,"a",2]', '["a",1]', "1"],
        ),
        ({"type": "array", "uniqueItems": False, "items": {"const": 1}}, ["[1,1]"], ["[2]"]),
    ],
)  # fmt: skip
def test_language(words, schema, accepted, refused):
    grammar = Grammar.from_schema(schema)
    assert [text for text in accepted if not words.accepts(grammar, text)] == []
    assert [text for text in refused if words.accepts(grammar, text)] == []


def test_endless_white_space_is_not_allowed(words):
    grammar = Grammar.from_schema({"type": "array"})
    assert words.accepts(grammar, "[ 1 , 2 ]")
    assert not words.accepts(grammar, "[  1]")
    assert not words.accepts(grammar, "[\n\n\n1]")


def nested_arrays(depth: int) -> dict:
    return {"type": "array", "items": nested_arrays(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("schema", "place", "reason"),
    [
        ({"type": "nope"}, "#", "unrecognized type nope"),
        ("x", "#", "schema must be an object"),
        (
            {"$ref": "#/definitions/none"},
            "#",
            "cannot resolve $ref #/definitions/none, definitions not found",
        ),
        ({"if": {}, "then": {}}, "#", "unsupported keyword 'if'"),
        ({"properties": {"a": {"not": {}}}}, "#/properties/a", "unsupported keyword 'not'"),
        ({"anyOf": [{}, {"contains": {}}]}, "#/anyOf/1", "unsupported keyword 'contains'"),
        ({"items": {"uniqueItems": True}}, "#/items", "unsupported keyword 'uniqueItems'"),
        ({"propertyNames": {"maxLength": 3}}, "#", "unsupported keyword 'propertyNames'"),
        ({"$ref": "http://x/y"}, "#", "unsupported $ref http://x/y"),
        ({"anyOf": {}}, "#", "anyOf must be a list"),
        ({"properties": []}, "#", "properties must be an object"),
        ({"type": [{}]}, "#", "unrecognized type {}"),
        ({"required": [1]}, "#", "required must be a list of names"),
        ({"enum": []}, "#", "enum must not be empty"),
        ({"pattern": 1}, "#", "pattern must be a string"),
        (nested_arrays(200), "#", "nested deeper than 100 levels"),
        ({"properties": {"a": 3}}, "#/properties/a", "schema must be an object"),
        (
            {"$ref": "#/elsewhere/x", "elsewhere": {"x": {"if": {}}}},
            "#/elsewhere/x",
            "unsupported keyword 'if'",
        ),
    ],
)
def test_never_fails_open(schema, place, reason):
    with pytest.raises(RequestError) as caught:
        Grammar.from_schema(schema)
    assert str(caught.value) == (
        f"JSON schema conversion failed:\nJSON schema error at {place}: {reason}"
    )
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "string", "format": "phone"}, "phone"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"x-guidance": {"lenient": True}, "type": "string", "format": "phone"}, "phone"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
    ],
)
def test_what_the_compiler_cannot_do_is_refused_too(words, schema, named):
    with pytest.raises(RequestError, match=named) as caught:
        Grammar.from_schema(schema).start(words.grammar)
    assert caught.value.status == 400


def test_a_property_may_bear_the_name_of_a_keyword():
    schema = {"properties": {"if": {"type": "string"}, "propertyNames": {"type": "string"}}}
    assert enforceable(schema) == schema


def test_the_clients_schema_is_left_alone():
    schema = {"uniqueItems": False, "type": "array"}
    assert enforceable(schema) == {"type": "array"}
    assert schema == {"uniqueItems": False, "type": "array"}


def test_large_repetitions_hold(words):
    item = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 100_000}}}
    schema = {"type": "array", "items": item, "minItems": 5000, "maxItems": 500_000}
    text, ended = words.walk(Grammar.from_schema(schema), seed=1, limit=300)
    assert not ended and text.lstrip().startswith("[")


@pytest.mark.parametrize(
    ("thinking", "accepted", "refused"),
    [
        (Thinking.NONE, ["{}"], ["thought</think>{}", "<think>a</think>{}", "\n{}"]),
        (Thinking.OPEN, ["thought</think>\n\n{}", "</think>{}"], ["{}", "a</think>\n\n\n{}"]),
        (Thinking.OPTIONAL, ["{}", "<think>\na</think>\n\n{}", "\n{}"], ["thought</think>{}"]),
    ],
)
def test_reasoning_before_the_answer(words, thinking, accepted, refused):
    grammar = Grammar.from_schema({}, thinking)
    assert [text for text in accepted if not words.accepts(grammar, text)] == []
    assert [text for text in refused if words.accepts(grammar, text)] == []


LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"enum": ["x", 3, None, "é\n"]}),
    st.builds(lambda a, n: {"type": "integer", "minimum": a, "maximum": a + n},
              st.integers(-99, 99), st.integers(0, 200)),
    st.builds(lambda a, n: {"type": "string", "minLength": a, "maxLength": a + n},
              st.integers(0, 3), st.integers(0, 4)),
)  # fmt: skip


def of_object(properties: dict, required: list) -> dict:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in required if name in properties],
        "additionalProperties": False,
    }


NAMES = st.sampled_from(["a", "b c", 'q"', "ü"])
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items, n: {"type": "array", "items": items, "minItems": n,
                                    "maxItems": n + 2}, inner, st.integers(0, 2)),
        st.builds(of_object, st.dictionaries(NAMES, inner, max_size=3), st.lists(NAMES)),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)  # fmt: skip


def is_valid(value: object, schema: dict) -> bool:
    if "anyOf" in schema:
        return any(is_valid(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    match schema["type"]:
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "string":
            return (isinstance(value, str)
                    and schema["minLength"] <= len(value) <= schema["maxLength"])  # fmt: skip
        case "array":
            return (
                isinstance(value, list)
                and schema["minItems"] <= len(value) <= schema["maxItems"]
                and all(is_valid(item, schema["items"]) for item in value)
            )
    properties = schema["properties"]
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= value.keys() <= properties.keys()
        and all(is_valid(item, properties[name]) for name, item in value.items())
    )


@settings(max_examples=60, deadline=None)
@given(SCHEMAS, st.integers(0, 10**6))
def test_whatever_is_sampled_is_valid(words, schema, seed):
    text, ended = words.walk(Grammar.from_schema(schema), seed, limit=3000)
    assert ended
    assert is_valid(json.loads(text), schema), text
