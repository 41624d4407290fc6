"""The completion fields of a request body: one table, strict types, llama-server's messages.

The same fields work on every generating route. Values are checked where they enter: a wrong type
or a broken hard bound is a 400 that names the field as the client spelled it; null means absent,
unknown fields are ignored. Defaults (the file's, then the command line's) are read by this table
too, so a default is as valid as a request.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gguf_hybrid.errors import RequestError
from gguf_hybrid.sampling.names import samplers_from_letters, samplers_from_names
from gguf_hybrid.sampling.params import (
    INT32_MAX,
    NUMBER_FIELDS,
    RANDOM_SEED,
    NumberField,
    SamplingParams,
)
from gguf_hybrid.text.tokenizer import Tokenizer

from .jsontext import type_error

_FROM_MINUS_1 = (-1, INT32_MAX)
_FROM_0 = (0, INT32_MAX)

COUNT_FIELDS: tuple[NumberField, ...] = (
    NumberField(
        "n_predict", int, hard=_FROM_MINUS_1, aliases=("max_completion_tokens", "max_tokens")
    ),
    NumberField("sse_ping_interval", int, hard=_FROM_MINUS_1),
    NumberField("n_indent", int, hard=_FROM_0),
    NumberField("n_keep", int, hard=_FROM_MINUS_1),
    NumberField("n_discard", int, hard=_FROM_0),
    NumberField("n_cache_reuse", int, hard=_FROM_0),
    NumberField("t_max_predict_ms", int, hard=(-1, 2**63 - 1)),
)
SWITCHES = (
    "verbose",
    "timings_per_token",
    "stream",
    "cache_prompt",
    "return_tokens",
    "return_progress",
    "reasoning_control",
)
SAMPLING_SWITCHES = ("ignore_eos", "post_sampling_probs", "backend_sampling", "grammar_lazy")
_SCALE = NumberField("lora", float)
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_REASONING_FORMATS = ("none", "deepseek", "deepseek-legacy", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionParams:
    """What one request asks for, checked. Names and meanings as in contract 8.1.

    ``chat_format``, ``generation_prompt``, ``grammar_triggers`` and ``preserved_tokens`` are set by
    the chat routes; the rest comes from the body or from the server's defaults.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    n_predict: int = -1
    n_cmpl: int = 1
    n_keep: int = 0
    n_discard: int = 0
    n_indent: int = 0
    n_cache_reuse: int = 0
    t_max_predict_ms: int = -1
    id_slot: int = -1
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    sse_ping_interval: int = 30
    cache_prompt: bool = True
    return_tokens: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    response_fields: tuple[str, ...] = ()
    verbose: bool = False
    json_schema: object | None = None
    grammar_triggers: tuple[object, ...] = ()
    preserved_tokens: tuple[int, ...] = ()
    chat_format: str = "Content-only"
    reasoning_format: str = "deepseek"
    reasoning_control: bool = False
    lora: tuple[tuple[int, float], ...] = ()
    generation_prompt: str = ""

    @property
    def reasoning_in_content(self) -> bool:
        """Whether a stream leaves the thinking tags in the content."""
        return self.stream and self.reasoning_format == "deepseek-legacy"


class CompletionSchema:
    """Reads bodies for one model: bounds depend on its slots, biases on its vocabulary."""

    def __init__(self, defaults: CompletionParams, tokenizer: Tokenizer, n_slots: int) -> None:
        self.defaults = defaults
        self._tokenizer = tokenizer
        self._counts = (
            *COUNT_FIELDS,
            NumberField("n_cmpl", int, hard=(1, n_slots), aliases=("n",)),
        )

    def with_defaults(self, body: Mapping[str, object]) -> "CompletionSchema":
        """This schema with the fields of ``body`` as what a request gets when it says nothing."""
        n_slots = int(self._counts[-1].hard[1]) if self._counts[-1].hard else 1
        return CompletionSchema(self.read(body), self._tokenizer, n_slots)

    def read(self, body: Mapping[str, object]) -> CompletionParams:
        """The parameters of a request. RequestError (400) names the field that is wrong."""
        given = {key: value for key, value in body.items() if value is not None}
        changes: dict[str, Any] = _numbers(self._counts, given) | _switches(SWITCHES, given)
        changes["include_usage"] = _include_usage(given)
        changes["sampling"] = self._sampling(given)
        if isinstance(slot := given.get("id_slot"), int) and not isinstance(slot, bool):
            changes["id_slot"] = slot
        if "stop" in given:
            changes["stop"] = _stop(given["stop"]) or self.defaults.stop
        if "response_fields" in given:
            changes["response_fields"] = _strings_or_none(given["response_fields"])
        if "json_schema" in given and "grammar" not in given:
            changes["json_schema"] = given["json_schema"]
        if "reasoning_format" in given:
            changes["reasoning_format"] = _reasoning_format(given["reasoning_format"])
        if "preserved_tokens" in given:
            changes["preserved_tokens"] = self._preserved(given["preserved_tokens"])
        if "grammar_triggers" in given:
            changes["grammar_triggers"] = _triggers(given["grammar_triggers"])
        if "lora" in given:
            changes["lora"] = _lora(given["lora"])
        return replace(self.defaults, **changes)

    def _sampling(self, given: Mapping[str, object]) -> SamplingParams:
        changes: dict[str, Any] = _numbers(NUMBER_FIELDS, given)
        changes |= _switches(SAMPLING_SWITCHES, given)
        if "samplers" in given:
            changes |= _samplers(given["samplers"])
        if "dry_sequence_breakers" in given:
            changes["dry_sequence_breakers"] = _breakers(given["dry_sequence_breakers"])
        if "logit_bias" in given:
            changes["logit_bias"] = self._logit_bias(given["logit_bias"])
        if isinstance(grammar := given.get("grammar"), str):
            changes["grammar"] = grammar
        if changes.get("dry_base", 1.0) < 1.0:
            changes["dry_base"] = self.defaults.sampling.dry_base
        return replace(self.defaults.sampling, **changes)

    def _logit_bias(self, value: object) -> tuple[tuple[int, float], ...]:
        """Pairs or an object; entries that make no sense are skipped, as the reference does."""
        if isinstance(value, dict):
            pairs = [(_id_or_text(key), bias) for key, bias in value.items()]
        elif isinstance(value, list):
            pairs = [(p[0], p[1]) for p in value if isinstance(p, list) and len(p) == 2]
        else:
            pairs = []
        found: list[tuple[int, float]] = []
        for token, raw in pairs:
            if (bias := _bias(raw)) is not None:
                found += [(token_id, bias) for token_id in self._bias_ids(token)]
        return tuple(found)

    def _bias_ids(self, token: object) -> list[int]:
        if isinstance(token, str):
            return self._tokenizer.encode(token, parse_special=False)
        is_id = isinstance(token, int) and not isinstance(token, bool)
        return [token] if is_id and 0 <= token < self._tokenizer.n_vocab else []  # type: ignore[operator,list-item]

    def _preserved(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise _field_error("preserved_tokens", type_error("array", value))
        texts = _strings("preserved_tokens", value)
        encoded = [self._tokenizer.encode(text) for text in texts]
        return tuple(sorted({ids[0] for ids in encoded if len(ids) == 1}))


def _field_error(name: str, message: str) -> RequestError:
    return RequestError(f"Field '{name}': {message}")


def _numbers(table: tuple[NumberField, ...], given: Mapping[str, object]) -> dict[str, float]:
    """The checked numbers of ``given``. Booleans count as 0 and 1, as in the reference."""
    found: dict[str, float] = {}
    for entry in table:
        spelled = next((n for n in (entry.name, *entry.aliases) if n in given), None)
        if spelled is None:
            continue
        value = given[spelled]
        if not isinstance(value, int | float):
            raise _field_error(spelled, type_error("number", value))
        found[entry.name] = (
            _wrapped_seed(value) if entry.name == "seed" else _checked(entry, value, spelled)
        )
    return found


def _checked(entry: NumberField, value: int | float, spelled: str) -> float:
    is_whole = isinstance(value, int) or entry.kind is int
    if is_whole and abs(value) >= 2**63 and value not in (math.inf, -math.inf):
        raise _field_error(spelled, "Value does not fit into 64 bits")
    return entry.checked(value, spelled)


def _wrapped_seed(value: int | float) -> int:
    """Seeds are 32 bits wide and wrap: -1 is the largest, which means random."""
    if isinstance(value, float) and not math.isfinite(value):
        raise _field_error("seed", f"Value must be finite, but got {value}")
    return int(value) & RANDOM_SEED


def _switches(names: tuple[str, ...], given: Mapping[str, object]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for name in names:
        if name in given:
            value = given[name]
            if not isinstance(value, bool):
                raise _field_error(name, type_error("boolean", value))
            found[name] = value
    return found


def _include_usage(given: Mapping[str, object]) -> bool:
    options = given.get("stream_options")
    if not isinstance(options, dict) or options.get("include_usage") is None:
        return False
    return _switches(("include_usage",), options)["include_usage"]


def _stop(value: object) -> tuple[str, ...]:
    """A string or a list of strings; other types mean nothing, a list of others is refused."""
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list):
        return ()
    return tuple(word for word in _strings("stop", value) if word)


def _strings(name: str, values: list[object]) -> list[str]:
    for value in values:
        if not isinstance(value, str):
            raise _field_error(name, type_error("string", value))
    return values  # type: ignore[return-value]


def _strings_or_none(value: object) -> tuple[str, ...]:
    is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return tuple(value) if is_list else ()  # type: ignore[arg-type]


def _samplers(value: object) -> dict[str, tuple[str, ...]]:
    if isinstance(value, str):
        return {"samplers": samplers_from_letters(value)}
    if isinstance(value, list):
        return {"samplers": samplers_from_names(_strings("samplers", value))}
    return {}


def _breakers(value: object) -> tuple[str, ...]:
    breakers = _strings_or_none(value)
    if not breakers:
        raise _field_error(
            "dry_sequence_breakers",
            "Error: dry_sequence_breakers must be a non-empty array of strings",
        )
    return breakers


def _bias(value: object) -> float | None:
    """A finite number, or False for a ban."""
    if value is False:
        return -math.inf
    if isinstance(value, int | float) and value is not True and math.isfinite(value):
        return float(value)
    return None


def _id_or_text(key: str) -> int | str:
    return int(key) if _WHOLE_NUMBER.fullmatch(key) else key


def _reasoning_format(value: object) -> str:
    if not isinstance(value, str):
        raise _field_error("reasoning_format", type_error("string", value))
    if value not in _REASONING_FORMATS:
        raise _field_error("reasoning_format", f"Unknown reasoning format: {value}")
    return value


def _triggers(value: object) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise _field_error("grammar_triggers", type_error("array", value))
    return tuple(value)


def _lora(value: object) -> tuple[tuple[int, float], ...]:
    """(id, scale) of each entry. There are no adapters; the list is only echoed."""
    entries: list[Any] = value if isinstance(value, list) else [None]
    for entry in entries:
        if not (isinstance(entry, dict) and isinstance(entry.get("id"), int)):
            raise _field_error(
                "lora", "Error: 'lora' must be an array of objects with 'id' and 'scale' fields"
            )
    return tuple((entry["id"], _scale(entry.get("scale", 0.0))) for entry in entries)


def _scale(value: object) -> float:
    if not isinstance(value, int | float):
        raise _field_error("lora", type_error("number", value))
    return _SCALE.checked(value)
