"""Which tokens end a turn, open an infill or are never printed.

llama.cpp finds most of them by their text, whatever the file's keys say, and several of them end
a generation: a Qwen3.5 file names one ``eos_token_id`` but five tokens stop it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gguf_hybrid.errors import GGUFError

from .vocabulary import TokenType, Vocabulary

_KEYS = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "pad": ("padding_token_id",),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}
# Texts that stand in for an absent key; the first one the vocabulary has.
_TEXTS = {
    "eot": ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<EOT>"),
    "eom": ("<|eom_id|>",),
    "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>"),
    "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>"),
    "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_EOG_TEXTS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<EOT>",
    "</s>",
)


@dataclass(frozen=True)
class SpecialTokens:
    """Ids by role, None where the vocabulary has none; ``eog`` is every id that ends a text."""

    bos: int | None
    eos: int | None
    eot: int | None
    eom: int | None
    pad: int | None
    fim_pre: int | None
    fim_suf: int | None
    fim_mid: int | None
    fim_pad: int | None
    fim_rep: int | None
    fim_sep: int | None
    eog: frozenset[int]
    control: frozenset[int]  # neither printed nor matched in text that is data
    user_defined: frozenset[int]  # always printed, always matched

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> "SpecialTokens":
        """Keys first, then texts; GGUFError for an id outside the vocabulary."""
        roles = {role: _id_of_role(role, metadata, vocabulary) for role in _KEYS}
        ends = {vocabulary.id_of[text] for text in _EOG_TEXTS if text in vocabulary.id_of}
        by_text = {roles[role] for role in _TEXTS} | ends
        ending_roles = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
        eog = ends | {roles[role] for role in ending_roles}
        typed = _ids_by_type(vocabulary)
        control = typed[TokenType.CONTROL] | typed[TokenType.UNKNOWN] | by_text
        return cls(
            **roles,
            eog=_without_none(eog),
            control=_without_none(control),
            user_defined=_without_none(typed[TokenType.USER_DEFINED] - by_text),
        )


def _without_none(ids: set[int | None]) -> frozenset[int]:
    return frozenset(i for i in ids if i is not None)


def _ids_by_type(vocabulary: Vocabulary) -> dict[TokenType, set[int | None]]:
    ids: dict[TokenType, set[int | None]] = {kind: set() for kind in TokenType}
    for i, kind in enumerate(vocabulary.types):
        if kind != TokenType.NORMAL:
            ids[TokenType(kind)].add(i)
    return ids


def _id_of_role(role: str, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> int | None:
    for name in _KEYS[role]:
        key = f"tokenizer.ggml.{name}"
        if key in metadata:
            return _checked(key, metadata[key], len(vocabulary))
    for text in _TEXTS.get(role, ()):
        if text in vocabulary.id_of:
            return vocabulary.id_of[text]
    return None


def _checked(key: str, value: Any, n_vocab: int) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise GGUFError(f"{key}: {value!r} is not a token id")
    if not 0 <= value < n_vocab:
        raise GGUFError(f"{key}: id {value} is outside the vocabulary of {n_vocab} tokens")
    return int(value)
