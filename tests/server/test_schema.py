"""Fields of a request body: what is accepted, clamped, refused, and how refusals read."""

import json
import math
from typing import Any

import pytest
from gguf_hybrid.server.jsontext import dump, parse
from gguf_hybrid.server.schema import (
    COUNT_FIELDS,
    SAMPLING_SWITCHES,
    SWITCHES,
    CompletionParams,
    CompletionSchema,
)

from gguf_hybrid.errors import RequestError
from gguf_hybrid.sampling.params import NUMBER_FIELDS

from .fakes import tokenizer

NUMBERS = [field.name for field in (*COUNT_FIELDS, *NUMBER_FIELDS)]


def schema(**defaults: Any) -> CompletionSchema:
    return CompletionSchema(CompletionParams(), tokenizer(), 4).with_defaults(defaults)


def refusal(body: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as caught:
        schema().read(body)
    assert caught.value.status == 400
    return str(caught.value)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1", [1], {"a": 1}])
def test_a_number_field_refuses_other_types(name: str, value: Any) -> None:
    message = refusal({name: value})
    assert message.startswith(f"Field '{name}': [json.exception.type_error.302] type must be")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, 10**400], ids=["inf", "-inf", "nan", "huge"]
)
def test_a_number_field_refuses_what_is_not_finite(name: str, value: Any) -> None:
    if name == "seed" and isinstance(value, int):
        assert schema().read({name: value}).sampling.seed == value & 0xFFFFFFFF
        return
    assert f"Field '{name}'" in refusal({name: value})


@pytest.mark.parametrize("name", [*SWITCHES, *SAMPLING_SWITCHES])
@pytest.mark.parametrize("value", [0, 1, "true", []])
def test_a_switch_is_a_boolean(name: str, value: Any) -> None:
    assert f"Field '{name}': " in refusal({name: value})
    assert "type must be boolean" in refusal({name: value})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"n_predict": -2},
            "Field 'n_predict': Value must be between -1 <= value <= 2147483647, but got -2",
        ),
        (
            {"max_tokens": -5},
            "Field 'max_tokens': Value must be between -1 <= value <= 2147483647, but got -5",
        ),
        ({"n": 5}, "Field 'n': Value must be between 1 <= value <= 4, but got 5"),
        ({"n_cmpl": 0}, "Field 'n_cmpl': Value must be between 1 <= value <= 4, but got 0"),
        ({"stop": [5]}, "Field 'stop': [json.exception.type_error.302] type must be string"),
        ({"dry_sequence_breakers": []}, "must be a non-empty array of strings"),
        ({"lora": {"id": 0}}, "Field 'lora': Error: 'lora' must be an array"),
        ({"samplers": [5]}, "Field 'samplers': "),
        ({"reasoning_format": "x"}, "Unknown reasoning format: x"),
    ],
)
def test_refusals_name_the_field_as_the_client_spelled_it(
    body: dict[str, Any], message: str
) -> None:
    assert message in refusal(body)


def test_null_is_absent_and_unknown_fields_are_ignored() -> None:
    body = dict.fromkeys([*NUMBERS, *SWITCHES, "stop", "samplers", "logit_bias", "grammar"])
    assert schema().read({**body, "user": "x"}) == schema().read({})


def test_soft_bounds_clamp() -> None:
    sampling = schema().read({"temperature": -1, "top_p": 3, "top_k": -3, "mirostat": 5}).sampling
    clamped = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.mirostat)
    assert clamped == (0, 1, 0, 2)


@pytest.mark.parametrize(("value", "n"), [(3.7, 3), (True, 1), (0, 0), (-1, -1)])
def test_numbers_are_read_as_c_reads_them(value: Any, n: int) -> None:
    assert schema().read({"n_predict": value}).n_predict == n


@pytest.mark.parametrize(
    ("seed", "kept"), [(-1, 2**32 - 1), (2**32, 0), (-5, 2**32 - 5), (1.5, 1), (7, 7)]
)
def test_seeds_wrap(seed: Any, kept: int) -> None:
    assert schema().read({"seed": seed}).sampling.seed == kept


def test_the_first_spelling_of_the_limit_wins() -> None:
    body = {"max_tokens": 3, "max_completion_tokens": 4}
    assert schema().read(body).n_predict == 4
    assert schema().read({**body, "n_predict": 2}).n_predict == 2


def test_defaults_are_what_a_request_without_fields_gets() -> None:
    ours = schema(temperature=0.25, stop=["x"], n_predict=9, cache_prompt=False)
    params = ours.read({})
    assert (params.sampling.temperature, params.stop, params.n_predict) == (0.25, ("x",), 9)
    assert not params.cache_prompt
    assert ours.read({"stop": []}).stop == ("x",)
    assert ours.read({"stop": "y"}).stop == ("y",)


@pytest.mark.parametrize(
    ("value", "biases"),
    [
        ([[22, 1000]], ((22, 1000.0),)),
        ([[19, False]], ((19, -math.inf),)),
        ([["4", -1], ["7", 50.5]], ((19, -1.0), (22, 50.5))),
        ({"22": 1, "-3": 5, "4": False}, ((22, 1.0), (4, -math.inf))),
        ([[99999, 5], [-1, 5], [22], [22, True], [22, "x"], "y", [1, 2, 3], [True, 1]], ()),
        (5, ()),
    ],
)
def test_logit_bias_forms(value: Any, biases: Any) -> None:
    assert schema().read({"logit_bias": value}).sampling.logit_bias == biases


def test_id_slot_of_another_type_is_ignored() -> None:
    assert schema().read({"id_slot": "0"}).id_slot == -1
    assert schema().read({"id_slot": 3}).id_slot == 3


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b'{"a":1',
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b"\xff\xfe{}",
        b'{"a":"\xff"}',
        b'{"a":"\\ud83d"}',
        b"[" * 100_000,
        b'{"a":' + b"1" * 5000 + b"}",
        b"\x00",
    ],
    ids=lambda raw: repr(raw[:12]),
)
def test_a_body_that_is_not_json_is_a_400_in_one_form(raw: bytes) -> None:
    with pytest.raises(RequestError, match=r"^\[json\.exception\.parse_error\.101\]") as caught:
        parse(raw)
    assert caught.value.status == 400


def test_of_duplicate_keys_the_last_counts_and_escapes_are_kept() -> None:
    assert parse(b'{"a":1,"a":"\\ud83d\\ude00\\u0000"}') == {"a": "😀\x00"}


def test_json_out_is_compact_finite_and_valid_utf8() -> None:
    raw = dump({"a": [1.5, math.inf, math.nan], "b": "é\ud83d", "c": {"d": -math.inf}})
    assert raw == '{"a":[1.5,null,null],"b":"é���","c":{"d":null}}'.encode()
    assert json.loads(raw)["c"] == {"d": None}
