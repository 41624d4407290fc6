"""Ids and pieces equal llama.cpp's recordings; a damaged vocabulary is refused by its key."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_hybrid.errors import GGUFError, RequestError
from gguf_hybrid.text.tokenizer import Tokenizer
from gguf_hybrid.weights.reader import open_gguf

DATA = Path(__file__).parents[1] / "data"
RECORDED = json.loads((DATA / "tokenizer" / "qwen35-tiny.json").read_text())


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    return dict(open_gguf(DATA / "models" / "qwen35-tiny-Q4_K_M.gguf").metadata)


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(metadata)


def altered(metadata: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The metadata with ``tokenizer.ggml.<name>`` replaced, or removed where None."""
    keyed = {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    return {name: value for name, value in (metadata | keyed).items() if value is not None}


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["category"])
def test_ids_and_pieces_are_those_of_llama_cpp(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    text = case["text"]
    pieces = [p.encode() if isinstance(p, str) else bytes(p) for p in case["pieces"]]
    assert tokenizer.encode(text) == case["ids"]
    assert tokenizer.encode(text, add_special=True) == case["ids"]
    assert tokenizer.encode(text, parse_special=False) == case["ids_no_special"]
    assert [tokenizer.piece(i, special=True) for i in case["ids"]] == pieces


@settings(deadline=None)
@given(text=st.text(max_size=60), parse_special=st.booleans())
def test_detokenising_gives_back_any_text(
    tokenizer: Tokenizer, text: str, parse_special: bool
) -> None:
    ids = tokenizer.encode(text, parse_special=parse_special)
    assert tokenizer.detokenize(ids) == text


def test_every_way_to_end_a_text_is_found(tokenizer: Tokenizer) -> None:
    names = {"<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
    assert {tokenizer.detokenize([i]) for i in tokenizer.eog_ids} == names
    assert tokenizer.eos_id == tokenizer.encode("<|im_end|>")[0] == tokenizer.special.eot
    assert tokenizer.id_of("<think>") == 4094 and tokenizer.id_of("<nothing>") is None
    assert tokenizer.special.fim_mid == tokenizer.encode("<|fim_middle|>")[0]


def test_control_tokens_print_only_on_request(tokenizer: Tokenizer) -> None:
    end, think = tokenizer.encode("<|im_end|><think>")
    assert tokenizer.is_control(end) and not tokenizer.is_control(think)
    assert tokenizer.piece(end, special=False) == b""
    assert tokenizer.piece(end, special=True) == tokenizer.token_bytes(end) == b"<|im_end|>"
    assert tokenizer.piece(think, special=False) == b"<think>"


def test_bos_and_eos_are_added_where_the_file_says_so(metadata: dict[str, Any]) -> None:
    wants = altered(metadata, bos_token_id=4076, add_bos_token=True, add_eos_token=True)
    tokenizer = Tokenizer.from_metadata(wants)
    assert tokenizer.encode("Hello", add_special=True) == [4076, 3925, 333, 4078]
    assert tokenizer.encode("Hello") == [3925, 333]
    assert tokenizer.encode_prompt(["Hello", 5]) == [4076, 3925, 333, 4078, 5]
    assert tokenizer.encode_prompt([5, "Hello"]) == [5, 3925, 333]


def test_without_a_bos_key_there_is_no_bos(tokenizer: Tokenizer) -> None:
    assert tokenizer.bos_id is None and not tokenizer.add_bos
    assert tokenizer.bos_text == ","  # what llama-server shows in /props


def test_a_prompt_mixes_texts_and_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_prompt(["Hello", 5, " world"]) == [3925, 333, 5, 2743]
    assert tokenizer.encode_prompt("Hello") == [3925, 333]


@pytest.mark.parametrize("bad", [-1, 4096, 10**9])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, bad: int) -> None:
    with pytest.raises(RequestError, match="Prompt contains invalid tokens"):
        tokenizer.require_ids([1, bad])
    with pytest.raises(RequestError, match=str(bad)) as refused:
        tokenizer.detokenize([1, bad])
    assert refused.value.status == 500


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="lone surrogate"):
        tokenizer.encode("a\ud800")


def test_numpy_metadata_gives_the_same_tokenizer(
    metadata: dict[str, Any], tokenizer: Tokenizer
) -> None:
    arrays = altered(
        metadata,
        token_type=np.array(metadata["tokenizer.ggml.token_type"], np.int32),
        eos_token_id=np.uint32(4078),
    )
    assert Tokenizer.from_metadata(arrays).special == tokenizer.special


def test_a_token_without_text_or_use_prints_nothing_or_its_name(metadata: dict[str, Any]) -> None:
    tokens, types = list(metadata["tokenizer.ggml.tokens"]), [1] * 4096
    tokens[4094], types[4095] = "", 5
    tokenizer = Tokenizer.from_metadata(altered(metadata, tokens=tokens, token_type=types))
    assert tokenizer.token_bytes(4094) == b"[EMPTY_4094]"
    assert tokenizer.token_bytes(4095) == b""
    assert 4095 not in tokenizer.encode("</think>")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "llama"),
        ("model", None),
        ("pre", "llama-bpe"),
        ("pre", None),
        ("tokens", None),
        ("tokens", []),
        ("tokens", "abc"),
        ("tokens", [1, 2]),
        ("tokens", ["a", "b", "a"]),
        ("token_type", [1, 1]),
        ("token_type", ["x"] * 4096),
        ("token_type", [1] * 4095 + [6]),
        ("token_type", [-1] * 4096),
        ("merges", None),
        ("merges", ["nospace"]),
        ("merges", ["Ġ "]),
        ("merges", ["Ġ 木"]),
        ("merges", ["q 0"]),
        ("eos_token_id", 4096),
        ("eos_token_id", "x"),
        ("bos_token_id", -1),
        ("fim_pre_token_id", 1 << 31),
    ],
)
def test_damage_is_refused_by_the_name_of_its_key(
    metadata: dict[str, Any], key: str, value: Any
) -> None:
    changes = {key: value} | ({"token_type": None} if key == "tokens" else {})
    with pytest.raises(GGUFError, match=rf"^tokenizer\.ggml\.{key}: [^\n]+$"):
        Tokenizer.from_metadata(altered(metadata, **changes))
