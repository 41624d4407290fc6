"""Tool calls in the Qwen3.5 form: well-formed, typed by the schema, required parameters there."""

import pytest

from gguf_hybrid.errors import RequestError
from gguf_hybrid.sampling.grammar import Grammar

WEATHER = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city."},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "code": {"type": "string", "pattern": "^[A-Z]{2}/x$", "maxLength": 10},
            "near": {"type": "string", "pattern": "aa", "minLength": 3},
            "any": {"description": "no type"},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "short": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
            "mixed": {"enum": ["x", 3, None]},
            "text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "point": {"$ref": "#/$defs/point"},
        },
        "required": ["city", "days"],
        "$defs": {
            "point": {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": False,
            }
        },
    },
}
NOW = {"name": "now"}


def call(name: str, **parameters: str) -> str:
    given = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def weather(**parameters: str) -> str:
    return call("get_weather", **({"city": "Paris", "days": "3"} | parameters))


ACCEPTED = [
    call("now"),
    weather(),
    call("get_weather", days="3", city="Paris"),
    weather(city=""),
    weather(city="a\nb </parameter> c\n</parameter>d"),
    weather(unit="F", tags='["a", "b"]', maybe="null", mixed="3", point='{"a": 1}'),
    weather(any="free text", short="ab", code="AB/x", near="b aa"),
    weather(short="null", mixed="x", any='{"a": 1}'),
    weather(text="null"),
    weather(text="nullify {"),
    call("now") + "\n" + call("now"),
]
REFUSED = [
    call("nope"),
    call("get_weather", city="Paris"),
    call("get_weather", city="Paris", days="x"),
    weather() + "!",
    weather(unit="K"),
    weather(tags="a"),
    weather(code="ABx"),
    weather(near="aa"),
    weather(short="abcd"),
    weather(mixed="4"),
    weather(point="{}"),
    weather(other="1"),
    weather().replace("</function>", "<parameter=days>\n4\n</parameter>\n</function>"),
    weather().replace("\n</tool_call>", "</tool_call>"),
]


@pytest.mark.parametrize("required", [False, True])
def test_language(words, required):
    grammar = Grammar.for_tools([WEATHER, NOW], required=required, parallel=True)
    assert [text for text in ACCEPTED if not words.accepts(grammar, text)] == []
    assert [text for text in ACCEPTED if not words.accepts(grammar, text, spelled=True)] == []
    assert [text for text in REFUSED if words.accepts(grammar, text)] == []


def test_auto_leaves_other_text_free(words):
    grammar = Grammar.for_tools([NOW], required=False, parallel=True)
    assert words.accepts(grammar, "no call at all <tool_cal")
    assert words.accepts(grammar, "thought\n" + call("now"))
    assert not words.accepts(grammar, "thought <tool_call>anything")


def test_required_wants_a_call(words):
    grammar = Grammar.for_tools([NOW], required=True, parallel=True)
    assert words.accepts(grammar, "I think</think>\n\nand say " + call("now") + "\n")
    assert not words.accepts(grammar, "no call at all")


def test_one_call_unless_parallel(words):
    grammar = Grammar.for_tools([NOW], required=False, parallel=False)
    assert words.accepts(grammar, call("now"))
    assert not words.accepts(grammar, call("now") + "\n" + call("now"))


def test_other_parameters_where_the_schema_asks_for_them(words):
    parameters = {"type": "object", "additionalProperties": {"type": "integer"}}
    grammar = Grammar.for_tools(
        [{"name": "f", "parameters": parameters}], required=True, parallel=False
    )
    assert words.accepts(grammar, call("f", x="1", y="2"))
    assert not words.accepts(grammar, call("f", x="a"))


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"properties": {"a": {"if": {}}}}, "#/properties/a: unsupported keyword 'if'"),
        ({"anyOf": [{}]}, "unsupported keyword 'anyOf' in tool parameters"),
        ({"properties": {f"p{i}": {} for i in range(65)}}, "more than 64 parameters"),
        ({"properties": {"a": {"$ref": "#/$defs/no"}}}, "cannot resolve"),
        ("text", "schema must be an object"),
        (
            {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
            "references without end",
        ),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/a"}},
                "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}},
            },
            "references without end",
        ),
        ({"properties": {"a": {"$ref": "#"}}}, "unsupported \\$ref # in tool parameters"),
        ({"properties": {"a": False}}, "unsupported schema False"),
        ({"required": "city"}, "required must be a list"),
    ],
)
def test_unenforceable_parameters_are_refused(parameters, named):
    with pytest.raises(RequestError, match=named) as caught:
        Grammar.for_tools([{"name": "f", "parameters": parameters}], required=True, parallel=True)
    assert caught.value.status == 400


@pytest.mark.parametrize("seed", range(5))
def test_sampled_calls_close(words, seed):
    parameters = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 0, "maximum": 9},
            "word": {"type": "string", "maxLength": 6},
        },
        "required": ["word"],
    }
    grammar = Grammar.for_tools(
        [{"name": "f", "parameters": parameters}], required=False, parallel=False
    )
    text, ended = words.walk(Grammar(grammar.lark), seed)  # awake from the first token
    assert ended and text.startswith("<tool_call>\n<function=f>\n")
    assert words.accepts(grammar, text)
