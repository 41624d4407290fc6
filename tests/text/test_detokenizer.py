"""Text comes out whole, whatever the cuts between the bytes."""

from hypothesis import given
from hypothesis import strategies as st

from gguf_hybrid.text.detokenizer import Detokenizer


class Chunks:
    """A tokenizer whose token ``i`` prints ``chunks[i]``; ids listed in ``control`` are special."""

    def __init__(self, chunks: list[bytes], control: frozenset[int] = frozenset()) -> None:
        self.chunks = chunks
        self.control = control

    def piece(self, token_id: int, special: bool) -> bytes:
        hidden = token_id in self.control and not special
        return b"" if hidden else self.chunks[token_id]


def decode(chunks: list[bytes]) -> list[str]:
    detokenizer = Detokenizer(Chunks(chunks))
    return [*(detokenizer.push(i) for i in range(len(chunks))), detokenizer.flush()]


@given(st.lists(st.binary(max_size=4)))
def test_any_bytes_decode_as_if_whole(chunks: list[bytes]) -> None:
    assert "".join(decode(chunks)) == b"".join(chunks).decode(errors="replace")


@given(st.text())
def test_a_character_appears_with_its_last_byte(text: str) -> None:
    data = text.encode()
    emitted = decode([data[i : i + 1] for i in range(len(data))])
    for i in range(len(data) + 1):
        complete = data[:i].decode(errors="ignore")
        assert "".join(emitted[:i]) == complete


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    assert decode([b"a\xf0\x9f", b"\x98"]) == ["a", "", "\ufffd"]


def test_a_byte_that_cannot_complete_is_not_held_back() -> None:
    assert decode([b"\xff", b"\xe6", b"b"]) == ["\ufffd", "", "\ufffdb", ""]


def test_being_inside_a_character_is_known() -> None:
    detokenizer = Detokenizer(Chunks([b"\xc3", b"\xa9"]))
    assert (detokenizer.push(0), detokenizer.is_inside_character) == ("", True)
    assert (detokenizer.push(1), detokenizer.is_inside_character) == ("é", False)


def test_control_tokens_print_when_special_or_preserved() -> None:
    pieces = Chunks([b"<a>"], control=frozenset([0]))
    assert Detokenizer(pieces).push(0) == ""
    assert Detokenizer(pieces, special=True).push(0) == "<a>"
    assert Detokenizer(pieces, preserved_tokens=frozenset([0])).push(0) == "<a>"
