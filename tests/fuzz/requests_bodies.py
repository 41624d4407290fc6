"""Bodies for every route: a valid one, then a few random changes anywhere in its tree.

Field names and bounds come from the server's own tables, so a new field is fuzzed the day it is
added. Values are ``Json``, plus ``Raw`` for text that JSON libraries do not write.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gguf_hybrid.server.schema import COUNT_FIELDS, SAMPLING_SWITCHES, SWITCHES

from gguf_hybrid.sampling.params import NUMBER_FIELDS


@dataclass(frozen=True)
class Raw:
    """Written as it is."""

    text: str


@dataclass(frozen=True)
class Twice:
    """An object with the key twice."""

    key: str
    first: Any
    second: Any


NUMBERS = (0, 1, -1, 2, 3.7, -0.0, 1e-30, 255, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63, 10**30)
LITERALS = ("NaN", "Infinity", "-Infinity", "1e400", "01", "+1", "0x10", "1" * 5000, "tru", "'a'")
TEXTS = (
    "",
    "a",
    " ",
    "\0",
    "\x7f\x1b[31m",
    "\u202etxet",
    "e\u0301" * 30,
    "\U0001f469\u200d\U0001f467" * 10,
    "\ufffe\ufeff",
    "%s%n{}{{7*7}}",
    "../../etc/passwd",
    "<|im_start|>system\n",
    "<think>\n",
    "<tool_call>\n<function=f>\n<parameter=x>\n",
    "data:image/png;base64,AAAA",
    "x" * 20_000,
    "required",
    "none",
)
SCHEMAS: tuple[Any, ...] = (
    {"type": "object"},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 5},
    {"type": "string", "pattern": "^(a+)+$"},
    {"type": "array", "maxItems": 5000},
    {"patternProperties": {"a": {}}},
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}},
    {"enum": []},
    {"type": ["string", "null"], "minLength": 3, "maxLength": 1},
    {"if": {}, "then": {}},
    {"type": "integer", "minimum": 10**40},
)
GRAMMARS = ('root ::= "a"', "root ::= root", "root ::= [", "x ::= y", 'root ::= ("a"*){9999}', "")
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Say a word."}]},
]
FUNCTION = {
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
}
TOOL = {"type": "function", "function": FUNCTION}
CHAT = {"messages": MESSAGES, "tools": [TOOL], "max_tokens": 4}
NATIVE = {"prompt": "The cat", "n_predict": 4, "temperature": 0.5, "stop": ["x"], "n_probs": 2}
CLAUDE_TOOL = {"name": "look", "input_schema": FUNCTION["parameters"]}
CLAUDE = {
    "max_tokens": 4,
    "system": "Be brief.",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "tools": [CLAUDE_TOOL],
    "thinking": {"type": "disabled"},
}
RESPONSES = {
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    "instructions": "Be brief.",
    "max_output_tokens": 4,
    "tools": [{"type": "function", **FUNCTION}],
    "text": {"format": {"type": "text"}},
}
INFILL = {
    "input_prefix": "def f(",
    "input_suffix": "return 1",
    "input_extra": [{"filename": "a.py", "text": "x = 1"}],
    "n_predict": 4,
}
VALID: dict[str, Any] = {
    "/completion": NATIVE,
    "/completions": NATIVE,
    "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 3, "n": 1, "logprobs": 1},
    "/v1/chat/completions": CHAT,
    "/chat/completions": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/chat/completions/input_tokens": CHAT,
    "/v1/chat/completions/control": {"id": "chatcmpl-x", "action": "reasoning_end"},
    "/apply-template": CHAT,
    "/v1/messages": CLAUDE,
    "/v1/messages/count_tokens": CLAUDE,
    "/v1/responses": RESPONSES,
    "/responses": RESPONSES,
    "/v1/responses/input_tokens": RESPONSES,
    "/responses/input_tokens": RESPONSES,
    "/infill": INFILL,
    "/tokenize": {"content": ["a", 5, "b"], "add_special": True, "with_pieces": True},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/slots/{id}": {"filename": "a.bin"},
}
CHAT_FIELDS: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("auto", "required", "none", {"type": "function", "function": {"name": "look"}}),
    "response_format": (
        {"type": "json_object"},
        *({"type": "json_schema", "json_schema": {"schema": schema}} for schema in SCHEMAS),
    ),
    "chat_template_kwargs": ({"enable_thinking": True}, {"messages": 5}, {"tools": None}),
    "reasoning_format": ("none", "auto", "deepseek"),
    "reasoning_effort": ("low", "none"),
    "thinking_budget_tokens": (0, 3),
    "stream_options": ({"include_usage": True},),
    "logprobs": (True, 5),
    "top_logprobs": (2, 10**9),
    "stream": (True,),
    "continue_final_message": (True,),
    "add_generation_prompt": (False,),
    "parallel_tool_calls": (True, False),
}
NATIVE_FIELDS: dict[str, tuple[Any, ...]] = {
    "json_schema": SCHEMAS,
    "grammar": GRAMMARS,
    "grammar_triggers": ([{"type": 1, "value": "a"}],),
    "preserved_tokens": (["<|im_end|>"],),
    "samplers": (["top_k", "temperature"], "kpt", ["infill", "mirostat"]),
    "logit_bias": ([[5, 1.5], ["a", False]], {"5": -1e30}),
    "lora": ([{"id": 0, "scale": 1.0}],),
    "dry_sequence_breakers": (["\n"],),
    "response_fields": (["content", "timings/x"],),
    "stop": ("a", ["", "b"], ["x" * 5000]),
    "id_slot": (0, 3, 99),
    "stream": (True,),
}


def _is_choice_count(name: str) -> bool:
    return name in ("n", "n_cmpl")


class BodyMaker:
    """Bodies that follow from ``rng`` alone."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def body(self, path: str) -> bytes:
        """What to send to ``path``: mostly JSON that is nearly right."""
        value = json.loads(json.dumps(VALID.get(path, {})))
        for _ in range(self.rng.choice((0, 1, 1, 2, 3))):
            value = self.rng.choice(self._changes())(value)
        raw = encode(value)
        return self._damaged(raw) if self.rng.random() < 0.1 else raw

    def _changes(self) -> tuple[Callable[[Any], Any], ...]:
        return (self._replace, self._replace, self._add, self._add, self._add, self._double)

    def value(self, depth: int = 0) -> Any:
        """Anything."""
        rng = self.rng
        leaves: tuple[Callable[[], Any], ...] = (
            lambda: rng.choice(NUMBERS),
            lambda: rng.choice(TEXTS),
            lambda: rng.choice((True, False, None)),
            lambda: Raw(rng.choice(LITERALS)),
        )
        inner: tuple[Callable[[], Any], ...] = (
            lambda: [self.value(depth + 1) for _ in range(rng.randrange(4))],
            lambda: {rng.choice(TEXTS): self.value(depth + 1) for _ in range(rng.randrange(3))},
            lambda: Raw("[" * (n := rng.choice((50, 2_000, 100_000))) + "]" * n),
            lambda: [rng.choice(NUMBERS) for _ in range(rng.choice((1, 100, 20_000)))],
        )
        return rng.choice(leaves if depth > 2 else leaves + inner)()

    def _replace(self, value: Any) -> Any:
        places = list(_places(value))
        if not places:
            return self.value()
        holder, key = self.rng.choice(places)
        if self.rng.random() < 0.2:
            del holder[key]
        else:
            holder[key] = self.value()
        return value

    def _add(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        rng = self.rng
        if rng.random() < 0.5:
            name, values = rng.choice([*CHAT_FIELDS.items(), *NATIVE_FIELDS.items()])
            value[name] = rng.choice(values)
        else:
            name = rng.choice(FIELD_NAMES)
            value[name] = rng.choice(NUMBERS) if rng.random() < 0.6 else self.value()
        return value

    def _double(self, value: Any) -> Any:
        if not isinstance(value, dict) or not value:
            return value
        key = self.rng.choice(list(value))
        value[key] = Twice(key, value[key], self.value())
        return value

    def _damaged(self, raw: bytes) -> bytes:
        at = self.rng.randrange(len(raw) + 1)
        return self.rng.choice(
            (raw[:at], raw[:at] + b"\xff\xfe" + raw[at:], b"\xef\xbb\xbf" + raw, b"", raw + raw)
        )


FIELD_NAMES = tuple(
    spelled
    for entry in (*NUMBER_FIELDS, *COUNT_FIELDS)
    for spelled in (entry.name, *entry.aliases)
    if not _is_choice_count(spelled)
) + (*SWITCHES, *SAMPLING_SWITCHES, *CHAT_FIELDS, *NATIVE_FIELDS, "n", "prompt", "messages")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (holder, key or index) in a tree."""
    if not isinstance(value, dict | list):
        return
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        yield from _places(value[key])


def encode(value: Any) -> bytes:
    """JSON with raw pieces and doubled keys."""
    return _text(value).encode("utf-8", "surrogatepass")


def _text(value: Any) -> str:
    match value:
        case Raw():
            return value.text
        case Twice():
            return _text(value.second)
        case dict():
            return (
                "{" + ",".join(p for key, item in value.items() for p in _members(key, item)) + "}"
            )
        case list():
            return "[" + ",".join(map(_text, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def _members(key: str, item: Any) -> Iterator[str]:
    if isinstance(item, Twice):
        yield f"{json.dumps(key)}:{_text(item.first)}"
    yield f"{json.dumps(key)}:{_text(item)}"
