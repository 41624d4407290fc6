"""What a grammar allows next, as a mask over the vocabulary (llguidance underneath).

A mask is computed outside the GIL and may be prepared on another thread while the model runs.
A grammar that turns out too complex at run time ends its own request (StepError), no other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from gguf_hybrid.errors import RequestError, StepError

from .gbnf import grammar_error

Mask = NDArray[np.bool_]

# Of one mask: Earley items in all, and at one character. Right-recursive rules gather an item for
# each character they have produced, ambiguous ones many; at these limits a mask takes about 0.5 s.
LIMITS = LLParserLimits(step_max_items=1_000_000, max_items_in_row=5_000, verbose_errors=False)
MAX_ERROR_CHARS = 300


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int], eos: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = eos

    def __call__(self, text: bytes) -> list[int]:
        raise NotImplementedError("grammars are matched on bytes, never tokenised")


class GrammarVocab:
    """A model's vocabulary prepared for grammars: made once (0.5 s for 248k tokens), shared.

    ``token_bytes[i]`` is the text of token i, ``special_ids`` are control tokens, which no text
    matches. Tags a grammar spells out (``</think>``, ``<tool_call>``) must not be among them.
    """

    def __init__(
        self, token_bytes: Sequence[bytes], special_ids: Iterable[int], eog_ids: Iterable[int]
    ) -> None:
        self.token_bytes = token_bytes
        self.eog_ids = frozenset(eog_ids)
        if not self.eog_ids:
            raise RequestError("this model has no end-of-generation token, which grammars need")
        ends = sorted(self.eog_ids)
        wrapper = _Vocabulary(token_bytes, sorted({*special_ids, *ends}), ends[0])
        self.tokenizer = LLTokenizer(
            TokenizerWrapper(wrapper), n_vocab=len(token_bytes), eos_token=ends
        )
        self._byte_tokens = {piece: i for i, piece in enumerate(token_bytes) if len(piece) == 1}

    @property
    def n_vocab(self) -> int:
        return len(self.token_bytes)

    def spell(self, text: bytes) -> list[int]:
        """``text`` as tokens of one byte each. StepError where the vocabulary lacks one."""
        pieces = [text[i : i + 1] for i in range(len(text))]
        if missing := [piece for piece in pieces if piece not in self._byte_tokens]:
            raise StepError(f"the vocabulary has no token for the byte {missing[0]!r}")
        return [self._byte_tokens[piece] for piece in pieces]


class Constraint:
    """A grammar in effect, at one place of one output."""

    def __init__(self, lark: str, vocab: GrammarVocab) -> None:
        """Compiles ``lark`` and computes the first mask, where a grammar without a beginning
        (``root ::= root``) fails. Raises RequestError (400) with llguidance's reason."""
        self._vocab = vocab
        self._matcher = LLMatcher(vocab.tokenizer, lark, log_level=0, limits=LIMITS)
        self._mask: Mask | None = None
        if self._matcher.is_error():
            raise grammar_error(self._error())
        try:
            self.prepare_mask()
        except StepError as error:
            raise grammar_error(self._error()) from error

    def prepare_mask(self) -> None:
        """Computes the next mask ahead of ``mask``. On any thread, but one at a time."""
        if self._mask is None:
            self._mask = self._compute()

    def mask(self) -> Mask:
        """Allowed tokens, bool [n_vocab]; only end-of-generation ones when nothing can follow."""
        self.prepare_mask()
        assert self._mask is not None
        return self._mask

    def accept(self, token: int) -> None:
        """Moves on. Raises StepError for a token the mask does not allow."""
        self._mask = None
        if token in self._vocab.eog_ids and self.is_complete:
            return
        if not self._matcher.consume_token(token):
            raise StepError(f"token {token} does not fit the grammar: {self._error()}")

    def accept_text(self, text: bytes) -> bool:
        """Moves on by text that is not made of single tokens; false if it does not fit."""
        self._mask = None
        return self._matcher.consume_tokens(self._vocab.spell(text))

    @property
    def is_complete(self) -> bool:
        """Whether the output could end here."""
        return self._matcher.is_accepting()

    @property
    def is_exhausted(self) -> bool:
        """Whether the output can only end here."""
        return self._matcher.is_stopped()

    def rollback(self, n_tokens: int) -> None:
        """Takes the last accepted tokens back (a rejected draft)."""
        self._mask = None
        if not self._matcher.rollback(n_tokens):
            raise StepError(f"grammar cannot take {n_tokens} tokens back: {self._error()}")

    def _compute(self) -> Mask:
        n_vocab = self._vocab.n_vocab
        bits = np.zeros((n_vocab + 31) // 32, dtype="<u4")
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._matcher.is_error():
            raise StepError(f"grammar failed: {self._error()}")
        return np.unpackbits(bits.view(np.uint8), count=n_vocab, bitorder="little").view(np.bool_)

    def _error(self) -> str:
        return _one_line(self._matcher.get_error())


@dataclass(frozen=True, slots=True)
class Trigger:
    """What wakes a lazy grammar: ``text`` in the output, or one ``token``."""

    text: str = ""
    token: int | None = None


class LazyConstraint:
    """Allows everything until a trigger shows; from the trigger on, itself included, a grammar."""

    def __init__(self, inner: Constraint, triggers: Iterable[Trigger], vocab: GrammarVocab) -> None:
        self._inner = inner
        self._vocab = vocab
        self._tokens = frozenset(t.token for t in triggers if t.token is not None)
        self._words = tuple(t.text.encode() for t in triggers if t.text)
        self._tail = b""  # as much of the output as may hold the beginning of a word
        self.is_active = False

    def prepare_mask(self) -> None:
        if self.is_active:
            self._inner.prepare_mask()

    def mask(self) -> Mask | None:
        return self._inner.mask() if self.is_active else None

    def accept(self, token: int) -> None:
        if self.is_active:
            self._inner.accept(token)
        elif token in self._tokens:
            self.is_active = True
            self._inner.accept(token)
        else:
            self._watch(self._vocab.token_bytes[token])

    @property
    def is_complete(self) -> bool:
        return not self.is_active or self._inner.is_complete

    def _watch(self, piece: bytes) -> None:
        text = self._tail + piece
        starts = [at for word in self._words if (at := text.find(word)) >= 0]
        if not starts:
            longest = max(map(len, self._words), default=1)
            self._tail = text[max(0, len(text) - longest + 1) :]
            return
        self.is_active = True
        # What followed the word within its token was produced unconstrained.
        if not self._inner.accept_text(text[min(starts) :]):
            raise StepError("the text of the token that woke the grammar does not fit it")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_ERROR_CHARS]
