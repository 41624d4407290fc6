"""How an infill prompt is put together, and what is refused."""

from typing import Any

import pytest
from gguf_hybrid.server.infill import Layout
from hypothesis import given
from hypothesis import strategies as st

from .conftest import Client
from .fakes import FakeRuntime, tokenizer
from .test_openai import post

PARTS = {"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n\ndef sub(a, b):\n"}


def layout(**fields: Any) -> Layout:
    return Layout(**{"n_batch": 64, "n_predict": 8, "n_ctx": 256, "suffix_first": False} | fields)


def split(ids: tuple[int, ...]) -> tuple[list[int], list[int], list[int]]:
    """What lies before the prefix, the prefix, and the suffix."""
    special = tokenizer().special
    assert special.fim_pre is not None and special.fim_suf is not None
    pre, suf = ids.index(special.fim_pre), ids.index(special.fim_suf)
    assert pre < suf and ids[-1] == special.fim_mid
    return list(ids[:pre]), list(ids[pre + 1 : suf]), list(ids[suf + 1 : -1])


@given(st.text("ab \n", max_size=300), st.text("ab \n", max_size=300), st.text("ab", max_size=9))
def test_long_parts_are_cut_where_they_are_far_from_the_gap(
    prefix: str, suffix: str, prompt: str
) -> None:
    words = tokenizer()
    before, after, typed = words.encode(prefix), words.encode(suffix), words.encode(prompt)
    _, kept_before, kept_after = split(layout().ids(words, prefix, suffix, prompt, []))
    n_before, n_after = min(len(before), 48), min(len(after), 16 - 2 - len(typed))
    assert kept_before == before[len(before) - n_before :] + typed
    assert kept_after == after[:n_after]


@pytest.mark.parametrize("n_words", [0, 3, 500])
def test_other_files_fill_what_is_left_of_the_context(n_words: int) -> None:
    extra = [("a.py", "word " * n_words)] if n_words else []
    files, *_ = split(layout().ids(tokenizer(), "x", "y", "", extra))
    text = tokenizer().detokenize(files)
    assert len(files) <= 256 - 64 - 16
    assert text.endswith("filename\n")
    assert ("a.py" in text) == (n_words == 3)


def test_the_suffix_may_come_first() -> None:
    special = tokenizer().special
    ids = layout(suffix_first=True).ids(tokenizer(), "x", "y", "", [])
    assert ids.index(special.fim_suf) < ids.index(special.fim_pre)  # type: ignore[arg-type]


def test_tags_in_a_file_are_text() -> None:
    ids = layout().ids(tokenizer(), "<|fim_suffix|>", "", "", [])
    assert ids.count(tokenizer().special.fim_suf) == 1  # type: ignore[arg-type]


async def test_an_answer_is_a_native_one(client: Client, runtime: FakeRuntime) -> None:
    answer = await post(client, "/infill", PARTS)
    assert answer["stop_type"] == "eos"
    assert answer["tokens_evaluated"] == len(runtime.worker.submitted[0].prompt)
    assert runtime.worker.submitted[0].kind == "infill"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"input_prefix": 5}, "string"),
        ({"input_suffix": None}, "string"),
        ({"input_extra": "x"}, "input_extra"),
        ({"input_extra": [{"text": 5}]}, "text"),
        ({"input_extra": [{"text": "a", "filename": 5}]}, "filename"),
    ],
)
async def test_a_wrong_body_names_what_is_wrong(client: Client, fields: Any, word: str) -> None:
    answer = await post(client, "/infill", {**PARTS, **fields}, status=400)
    assert word in answer["error"]["message"]
