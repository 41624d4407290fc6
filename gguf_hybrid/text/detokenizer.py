"""Token ids to text, one at a time.

A token may end inside a UTF-8 character. Its bytes wait for the token that completes them; bytes
that can no longer become a character turn into U+FFFD at once, so nothing waits in vain.
"""

import codecs
from collections.abc import Set
from typing import Protocol


class Pieces(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def piece(self, token_id: int, special: bool) -> bytes: ...


class Detokenizer:
    """Decodes one sequence.

    Control tokens print only with ``special``, or when they are among ``preserved_tokens``.
    """

    def __init__(
        self,
        tokenizer: Pieces,
        *,
        special: bool = False,
        preserved_tokens: Set[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._preserved = preserved_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        special = self._special or token_id in self._preserved
        return self._decoder.decode(self._tokenizer.piece(token_id, special))

    @property
    def is_inside_character(self) -> bool:
        """Whether the last token ended in the middle of a character."""
        waiting, _ = self._decoder.getstate()
        return bool(waiting)

    def flush(self) -> str:
        """U+FFFD for the begun character, if there is one."""
        return self._decoder.decode(b"", final=True)
