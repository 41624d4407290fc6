"""What of a generated text may be sent, and where a stop string ends it.

Runs inside the engine's step, so that a stop string ends a request on the very token. While the
end of the text could begin a stop string, everything not yet sent is held back, as llama-server
does; so a stop string can only ever lie in text that was not sent.
"""

from collections.abc import Set
from dataclasses import dataclass

from .detokenizer import Detokenizer, Pieces


@dataclass(frozen=True)
class Piece:
    """What one token adds to the text that is sent.

    ``incomplete``: the token ended inside a character, and llama-server sends no chunk for it.
    ``under_indented``: a line began with less than ``n_indent`` blanks; the request ends there.
    """

    text: str
    stop_word: str | None = None
    incomplete: bool = False
    under_indented: bool = False


class TextReader:
    """Reads the tokens of one request; ``text`` is all of it so far, without the stop string.

    ``text[:n_sent]`` has been returned by ``push``; the rest is held back.
    """

    def __init__(
        self,
        tokenizer: Pieces,
        stop: tuple[str, ...] = (),
        *,
        special: bool = False,
        preserved_tokens: Set[int] = frozenset(),
        n_indent: int = 0,
    ) -> None:
        self.text = ""
        self.n_sent = 0
        self.has_new_line = False
        self._detokenizer = Detokenizer(
            tokenizer, special=special, preserved_tokens=preserved_tokens
        )
        self._stop = tuple(word for word in stop if word)
        self._n_searched = 0
        self._n_indent = n_indent
        self._line_start = 0

    def push(self, token_id: int, is_eog: bool) -> Piece:
        """Add a token. After an end-of-generation token nothing is held back."""
        self.text += self._detokenizer.push(token_id)
        if self._detokenizer.is_inside_character:
            return Piece("", incomplete=True)
        return self._send(hold=not is_eog)

    def finish(self) -> Piece:
        """Release what is held; a begun character becomes U+FFFD.

        Where a limit ended the text, llama-server's ``/completion`` stream leaves this out and
        only the whole answer has it.
        """
        self.text += self._detokenizer.flush()
        return self._send(hold=False)

    def _send(self, *, hold: bool) -> Piece:
        stop_word = self._cut_at_stop_word()
        under_indented = stop_word is None and self._cut_at_indent()
        if hold and stop_word is None and self._may_begin_stop_word():
            return Piece("")
        text = self.text[self.n_sent :]
        self.n_sent = len(self.text)
        self.has_new_line = self.has_new_line or "\n" in text
        return Piece(text, stop_word, under_indented=under_indented)

    def _cut_at_stop_word(self) -> str | None:
        """Cut at the leftmost stop string; of several there, the first one named."""
        found = [(at, i) for i, word in enumerate(self._stop) if (at := self._find(word)) >= 0]
        self._n_searched = len(self.text)
        if not found:
            return None
        at, i = min(found)
        self.text = self.text[:at]
        return self._stop[i]

    def _find(self, word: str) -> int:
        begin = max(self.n_sent, self._n_searched - len(word) + 1)
        return self.text.find(word, begin)

    def _may_begin_stop_word(self) -> bool:
        n_unsent = len(self.text) - self.n_sent
        return any(
            self.text.endswith(word[:n])
            for word in self._stop
            for n in range(min(n_unsent, len(word) - 1), 0, -1)
        )

    def _cut_at_indent(self) -> bool:
        """Cut at the first line after the first that is indented by less than ``n_indent``."""
        while self._n_indent > 0:
            if self._line_start > 0:
                line = self.text[self._line_start :]
                n_blank = len(line) - len(line.lstrip(" \t"))
                if n_blank < min(self._n_indent, len(line)):
                    self.text = self.text[: self._line_start + n_blank]
                    return True
            new_line = self.text.find("\n", self._line_start)
            if new_line < 0:
                break
            self._line_start = new_line + 1
        return False
