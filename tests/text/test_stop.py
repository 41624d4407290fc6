"""Nothing of a stop string is ever sent, nothing else is ever lost."""

from hypothesis import example, given
from hypothesis import strategies as st

from gguf_hybrid.text.stop import Piece, TextReader


class Chunks:
    """A tokenizer whose token ``i`` prints ``chunks[i]``."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    def piece(self, token_id: int, special: bool) -> bytes:
        return self.chunks[token_id]


def read(chunks: list[bytes], *stop: str, n_indent: int = 0) -> tuple[TextReader, list[Piece]]:
    """Push all chunks until a stop, then finish."""
    reader = TextReader(Chunks(chunks), stop, n_indent=n_indent)
    pieces: list[Piece] = []
    for i in range(len(chunks)):
        pieces.append(reader.push(i, is_eog=False))
        if pieces[-1].stop_word or pieces[-1].under_indented:
            return reader, pieces
    return reader, [*pieces, reader.finish()]


def texts(*chunks: str | bytes, stop: tuple[str, ...]) -> list[str]:
    encoded = [c.encode() if isinstance(c, str) else c for c in chunks]
    return [piece.text for piece in read(encoded, *stop)[1]]


words = st.text(alphabet="abé😀\n", max_size=12)
cuts = st.lists(st.integers(0, 48), max_size=8)


def split(text: str, at: list[int]) -> list[bytes]:
    data = text.encode()
    edges = [0, *sorted(min(i, len(data)) for i in at), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@given(words, words.filter(bool), cuts)
def test_one_stop_string_cuts_the_same_at_every_split(text: str, stop: str, at: list[int]) -> None:
    reader, pieces = read(split(text, at), stop)
    before, found, _ = text.partition(stop)
    assert reader.text == "".join(piece.text for piece in pieces) == before
    assert pieces[-1].stop_word == (stop if found else None)


@given(words, st.lists(words.filter(bool), min_size=1, max_size=3), cuts)
@example("éa", ["éa"], [1])
@example("aab", ["ab", "b"], [2])
def test_what_was_sent_is_never_taken_back(text: str, stop: list[str], at: list[int]) -> None:
    reader, pieces = read(split(text, at), *stop)
    assert text.startswith(reader.text)
    assert reader.n_sent == len(reader.text)
    assert not any(word in reader.text for word in stop)
    assert (pieces[-1].stop_word is None) == (reader.text == text)


@given(words, cuts)
def test_without_stop_strings_nothing_is_held_but_half_characters(text: str, at: list[int]) -> None:
    chunks = split(text, at)
    _, pieces = read(chunks)
    sent = b"".join(piece.text.encode() for piece in pieces)
    assert sent == text.encode()
    for chunk, piece in zip(chunks, pieces, strict=False):
        assert piece.incomplete or piece.text or not chunk


def test_a_stop_string_over_two_tokens_sends_what_precedes_it() -> None:
    # Recorded from llama-server: stop "oun: a p" in "River is a noun: a person".
    sent = texts("River", " is", " a", " noun", ":", " a", " person", stop=("oun: a p",))
    assert sent == ["River", " is", " a", "", "", "", " n"]


def test_held_text_is_sent_when_the_stop_string_fails() -> None:
    sent = texts(" a", " noun", ":", " is", stop=("noun: a",))
    assert sent == [" a", "", "", " noun: is", ""]


def test_held_text_is_part_of_the_answer_but_not_sent_before_the_finish() -> None:
    reader = TextReader(Chunks([b"River", b" noun"]), ("noun: a",))
    assert [reader.push(i, is_eog=False).text for i in (0, 1)] == ["River", ""]
    assert (reader.text, reader.n_sent) == ("River noun", 5)
    assert reader.finish().text == " noun"


def test_an_end_token_releases_held_text() -> None:
    reader = TextReader(Chunks([b"no", b""]), ("noun",))
    assert reader.push(0, is_eog=False).text == ""
    assert reader.push(1, is_eog=True) == Piece("no")


def test_the_leftmost_then_the_first_named_stop_string_wins() -> None:
    assert read([b"xaby"], "b", "a")[1][-1].stop_word == "a"
    assert read([b"xaby"], "ab", "a")[1][-1].stop_word == "ab"


def test_a_half_character_waits_and_is_replaced_at_the_end() -> None:
    reader, pieces = read([b"a", b"\xf0\x9f"])
    assert pieces == [Piece("a"), Piece("", incomplete=True), Piece("\ufffd")]
    assert reader.text == "a\ufffd"


def test_a_stop_string_before_a_half_character_still_counts() -> None:
    assert read([b"a STOP\xf0\x9f"], "STOP")[1][-1] == Piece("a ", "STOP")


def test_empty_stop_strings_are_ignored() -> None:
    assert texts("ab", stop=("",)) == ["ab", ""]


def test_a_new_line_counts_once_it_is_sent() -> None:
    reader = TextReader(Chunks([b"a\n", b"b"]), ("\nc",))
    reader.push(0, is_eog=False)
    assert not reader.has_new_line
    reader.push(1, is_eog=False)
    assert reader.has_new_line


def test_a_line_indented_too_little_ends_the_text() -> None:
    reader, pieces = read([b"a\n  ", b"  b\n ", b" c", b"d"], n_indent=4)
    assert reader.text == "a\n    b\n  "
    assert pieces[-1].under_indented and len(pieces) == 3


def test_the_first_line_and_deep_lines_do_not_end_the_text() -> None:
    reader, pieces = read([b"a\n    b\n\t\t\t\t c\n"], n_indent=4)
    assert reader.text == "a\n    b\n\t\t\t\t c\n"
    assert not any(piece.under_indented for piece in pieces)
