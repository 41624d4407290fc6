"""The vocabulary of a GGUF file: token texts, token types and merges, checked once.

A byte-level BPE vocabulary stores each byte of a token as one printable character (the GPT-2
alphabet), so a token's text is not what it prints. Only normal tokens are spelled that way;
control and user-defined tokens (``<|im_end|>``, ``<think>``) are stored verbatim.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

from gguf_hybrid.errors import GGUFError
from gguf_hybrid.keys import shown

_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tokenizer.ggml.pre -> the regular expression that cuts text into words before BPE.
PRE_TOKENIZERS: Mapping[str, str] = {
    "qwen35": _QWEN35_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
}


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character of each byte: itself where printable, else 256 + a counter."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(hidden)
    }


BYTE_OF_CHAR: Mapping[str, int] = _byte_alphabet()


@dataclass(frozen=True)
class Vocabulary:
    """Token ``i`` has text ``tokens[i]`` and type ``types[i]``; ``merges`` by falling priority."""

    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[tuple[str, str]]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Vocabulary":
        """Read the ``tokenizer.ggml.*`` keys; GGUFError names the key that cannot be used."""
        model = metadata.get("tokenizer.ggml.model")
        if not isinstance(model, str) or model != "gpt2":
            raise GGUFError(
                f"tokenizer.ggml.model: {shown(model)} is not supported (only 'gpt2' is)"
            )
        pre = metadata.get("tokenizer.ggml.pre")
        if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
            known = ", ".join(PRE_TOKENIZERS)
            raise GGUFError(
                f"tokenizer.ggml.pre: unknown pre-tokenizer {shown(pre)} (known: {known})"
            )
        tokens = _tokens(metadata)
        vocabulary = cls(pre, tokens, _types(metadata, len(tokens)), _merges(metadata))
        vocabulary._check()
        return vocabulary

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def id_of(self) -> dict[str, int]:
        """Token text -> id."""
        return {text: i for i, text in enumerate(self.tokens)}

    def printed(self, token_id: int) -> bytes:
        """The bytes a token stands for; unused and undefined tokens stand for none."""
        text = self.tokens[token_id]
        match self.types[token_id]:
            case TokenType.NORMAL:
                return _unspell(text)
            case TokenType.UNUSED | TokenType.UNDEFINED:
                return b""
            case _:
                return text.encode()

    def _check(self) -> None:
        if len(self.id_of) != len(self.tokens):
            text, _ = Counter(self.tokens).most_common(1)[0]
            raise GGUFError(f"tokenizer.ggml.tokens: token {text!r} occurs twice")
        known = self.id_of
        for left, right in self.merges:
            if left not in known or right not in known or left + right not in known:
                raise GGUFError(
                    f"tokenizer.ggml.merges: merge {left!r} + {right!r}"
                    " names a token that is not in tokenizer.ggml.tokens"
                )


def _unspell(text: str) -> bytes:
    try:
        return bytes(map(BYTE_OF_CHAR.__getitem__, text))
    except KeyError:  # a normal token that is not spelled in the byte alphabet prints as it is
        return text.encode()


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if values is None or isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise GGUFError(f"{key}: a list of strings is needed, not {type(values).__name__}")
    strings = list(values)
    if not all(isinstance(value, str) for value in strings):
        raise GGUFError(f"{key}: not every element is a string")
    return strings


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if not tokens:
        raise GGUFError("tokenizer.ggml.tokens: the vocabulary is empty")
    # llama.cpp names empty tokens so; they can then never match, nor collide.
    return [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]


def _types(metadata: Mapping[str, Any], n_vocab: int) -> list[int]:
    key = "tokenizer.ggml.token_type"
    if key not in metadata:
        return [int(TokenType.NORMAL)] * n_vocab
    types = np.asarray(metadata[key])
    if types.ndim != 1 or types.dtype.kind not in "iu":
        raise GGUFError(f"{key}: a list of integers is needed")
    if len(types) != n_vocab:
        raise GGUFError(f"{key}: {len(types)} types for {n_vocab} tokens")
    if types.min() < 0 or types.max() > max(TokenType):
        wrong = int(np.argmax((types < 0) | (types > max(TokenType))))
        raise GGUFError(f"{key}: token {wrong} has the unsupported type {int(types[wrong])}")
    values: list[int] = types.tolist()
    return values


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    key = "tokenizer.ggml.merges"
    pairs = []
    for merge in _strings(metadata, key):
        cut = merge.find(" ", 1)  # from 1: the left half may itself begin with a space
        if cut < 0 or cut + 1 == len(merge):
            raise GGUFError(f"{key}: {merge!r} is not a pair of tokens")
        pairs.append((merge[:cut], merge[cut + 1 :]))
    return pairs
