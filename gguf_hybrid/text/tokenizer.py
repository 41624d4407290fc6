"""Text to token ids and back, from the metadata of a GGUF file alone.

Built on the ``tokenizers`` library, without the Unicode normaliser a model's ``tokenizer.json``
asks for: llama.cpp applies none, and some ids would differ. Ids never depend on anything outside
the file. Decoding works on bytes, because a token may end inside a UTF-8 character.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as BpeTokenizer

from gguf_hybrid.errors import GGUFError, RequestError
from gguf_hybrid.keys import shown

from .special_tokens import SpecialTokens
from .vocabulary import PRE_TOKENIZERS, Vocabulary

# What llama.cpp shows as BOS and EOS of a "gpt2" vocabulary whose keys are absent.
_GPT2_DEFAULT_ID = 11


class Tokenizer:
    """Byte-level BPE of one GGUF. Immutable; safe to use from several threads."""

    def __init__(
        self, vocabulary: Vocabulary, special: SpecialTokens, *, add_bos: bool, add_eos: bool
    ) -> None:
        self.vocabulary = vocabulary
        self.special = special
        self._prefix = [special.bos] if add_bos and special.bos is not None else []
        self._suffix = [special.eos] if add_eos and special.eos is not None else []
        # byte_fallback and unknown tokens stay off: every byte is a token of the alphabet.
        bpe = models.BPE(vocab=vocabulary.id_of, merges=list(vocabulary.merges))
        always = special.user_defined
        self._text_only = _bpe_tokenizer(bpe, vocabulary, always)
        self._with_special = _bpe_tokenizer(bpe, vocabulary, always | special.control)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Build from ``tokenizer.ggml.*``; GGUFError names the key that cannot be used."""
        vocabulary = Vocabulary.from_metadata(metadata)
        return cls(
            vocabulary,
            SpecialTokens.from_metadata(metadata, vocabulary),
            add_bos=_flag(metadata, "tokenizer.ggml.add_bos_token"),
            add_eos=_flag(metadata, "tokenizer.ggml.add_eos_token"),
        )

    @property
    def n_vocab(self) -> int:
        return len(self.vocabulary)

    @property
    def bos_id(self) -> int | None:
        return self.special.bos

    @property
    def eos_id(self) -> int | None:
        return self.special.eos

    @property
    def add_bos(self) -> bool:
        return bool(self._prefix)

    @property
    def eog_ids(self) -> frozenset[int]:
        """Every id that ends a generation."""
        return self.special.eog

    @property
    def bos_text(self) -> str:
        """BOS as ``/props`` prints it: llama.cpp falls back on id 11 where the key is absent."""
        return self._role_text(self.bos_id)

    @property
    def eos_text(self) -> str:
        """EOS as ``/props`` prints it."""
        return self._role_text(self.eos_id)

    def id_of(self, text: str) -> int | None:
        """The token whose stored text is exactly this, such as ``<tool_call>``."""
        return self.vocabulary.id_of.get(text)

    def is_control(self, token_id: int) -> bool:
        """Whether the token prints nothing unless special output is asked for."""
        return token_id in self.special.control

    def encode(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Token ids of ``text``.

        ``parse_special`` turns the text of a control token (``<|im_end|>``) into its id; without
        it only user-defined tokens (``<think>``) are found. ``add_special`` adds BOS and EOS
        where the file wants them.
        """
        _require_unicode(text)
        tokenizer = self._with_special if parse_special else self._text_only
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return [*self._prefix, *ids, *self._suffix] if add_special else ids

    def encode_prompt(
        self,
        parts: str | Iterable[str | int],
        *,
        add_special: bool = True,
        parse_special: bool = True,
    ) -> list[int]:
        """Ids of one prompt given as text, or as texts and ids in any order.

        BOS is added before a leading text, never before a leading id. Ids pass as they are; see
        ``require_ids``.
        """
        ids: list[int] = []
        for i, part in enumerate([parts] if isinstance(parts, str) else parts):
            if isinstance(part, str):
                special = add_special and i == 0
                ids += self.encode(part, add_special=special, parse_special=parse_special)
            else:
                ids.append(part)
        return ids

    def require_ids(self, ids: Sequence[int]) -> None:
        """Refuse a prompt that holds an id outside the vocabulary."""
        if any(not 0 <= token_id < self.n_vocab for token_id in ids):
            raise RequestError("Prompt contains invalid tokens")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, control tokens included."""
        return self.vocabulary.printed(token_id)

    def piece(self, token_id: int, special: bool) -> bytes:
        """The bytes a generated token prints: none for a control token unless ``special``."""
        if not special and token_id in self.special.control:
            return b""
        return self.vocabulary.printed(token_id)

    def detokenize_bytes(self, ids: Iterable[int], *, special: bool = True) -> bytes:
        """The bytes of all ids; RequestError (500, as upstream) for one outside the vocabulary."""
        ids = list(ids)
        for token_id in ids:
            if not 0 <= token_id < self.n_vocab:
                message = f"token id {token_id} is outside the vocabulary of {self.n_vocab} tokens"
                raise RequestError(message, status=500, kind="server_error")
        return b"".join(self.piece(token_id, special) for token_id in ids)

    def detokenize(self, ids: Iterable[int], *, special: bool = True) -> str:
        """Text of all ids; bytes that are not UTF-8 become U+FFFD."""
        return self.detokenize_bytes(ids, special=special).decode(errors="replace")

    def _role_text(self, token_id: int | None) -> str:
        shown = _GPT2_DEFAULT_ID if token_id is None else token_id
        return self.detokenize([shown]) if shown < self.n_vocab else ""


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("text is not valid Unicode: it has a lone surrogate") from error


def _bpe_tokenizer(bpe: models.BPE, vocabulary: Vocabulary, matched: Iterable[int]) -> BpeTokenizer:
    """A ``tokenizers`` object that finds the ``matched`` ids verbatim and spells all other text."""
    tokenizer = BpeTokenizer(bpe)
    words = pre_tokenizers.Split(Regex(PRE_TOKENIZERS[vocabulary.pre]), behavior="isolated")
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, spell])
    tokenizer.add_tokens(
        [AddedToken(vocabulary.tokens[i], normalized=False) for i in sorted(matched)]
    )
    return tokenizer


def _flag(metadata: Mapping[str, Any], key: str) -> bool:
    value = metadata.get(key, False)
    if not isinstance(value, bool | int):
        raise GGUFError(f"{key}: {shown(value)} is not a bool")
    return bool(value)
