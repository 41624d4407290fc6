"""What the samplers must know of a vocabulary, handed in so that nothing here sees a tokenizer."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

MAX_BREAKER_BYTES = 40
MAX_TAIL_TOKENS = 20

Tails = frozenset[tuple[int, ...]]


class SamplingVocab:
    """The vocabulary of one model; shared by all requests.

    ``token_bytes[i]`` is the text of token i (b"" for control tokens), ``tokenize`` turns text
    into ids without special tokens.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        eog_ids: Iterable[int],
        tokenize: Callable[[str], Sequence[int]],
        eot_id: int | None = None,
    ) -> None:
        self.token_bytes = token_bytes
        self.n_vocab = len(token_bytes)
        self.eog_ids = frozenset(eog_ids)
        self.eot_id = min(self.eog_ids, default=None) if eot_id is None else eot_id
        self._tokenize = tokenize
        self._breakers: dict[str, dict[int, Tails]] = {}
        self._ids = np.arange(self.n_vocab)
        self._ids.flags.writeable = False

    @property
    def ids(self) -> NDArray[np.int64]:
        """All token ids in order, read-only."""
        return self._ids

    def breaker_heads(self, breaker: str) -> dict[int, Tails]:
        """Where DRY meets ``breaker`` at token level: head token → the tokens that must follow it.

        An empty tail means the token contains the breaker by itself. Scans the vocabulary once for
        each string and remembers the result.
        """
        if breaker not in self._breakers:
            self._breakers[breaker] = self._find_heads(breaker.encode()[:MAX_BREAKER_BYTES])
        return self._breakers[breaker]

    def _find_heads(self, text: bytes) -> dict[int, Tails]:
        if not text:
            return {}
        whole: Tails = frozenset({()})
        heads = {i: whole for i, piece in enumerate(self.token_bytes) if text in piece}
        for cut in range(1, len(text)):
            tail = self._tail(text[cut:])
            if tail is None:
                continue
            for i, piece in enumerate(self.token_bytes):
                if piece.endswith(text[:cut]) and text not in piece:
                    heads[i] = heads.get(i, frozenset()) | {tail}
        return heads

    def _tail(self, rest: bytes) -> tuple[int, ...] | None:
        """``rest`` as tokens; None where the cut lies inside a character, which no token has."""
        try:
            return tuple(self._tokenize(rest.decode()))[:MAX_TAIL_TOKENS]
        except UnicodeDecodeError:
            return None
