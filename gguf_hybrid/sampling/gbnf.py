"""llama.cpp's grammar notation (GBNF), parsed into a small tree.

    root ::= "yes" | [0-9]{1,3} (ws item)* # comment

A rule ends at the line end, except inside parentheses and after ``|``. Errors name the line.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gguf_hybrid.errors import RequestError

MAX_GRAMMAR_CHARS = 1 << 20
MAX_NESTING = 100

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_COUNTS = re.compile(r"\{[ \t]*([0-9]{1,9})[ \t]*(,?)[ \t]*([0-9]{0,9})[ \t]*\}")
_TOKEN = re.compile(r"(!?)<(?:\[([0-9]{1,9})\]|([^<>\s\[][^<>\n]*))>")
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"} | {char: char for char in '\\"[]-'}


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class CharClass:
    """One character in (or, ``negated``, outside) any of the inclusive ranges."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the vocabulary by id, or, ``negated``, any other token."""

    id: int
    negated: bool


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``item`` at least ``least`` and at most ``most`` times (None: any number)."""

    item: "Node"
    least: int
    most: int | None


Node = Literal | CharClass | Token | Ref | Sequence | Choice | Repeat

ANY_CHAR = CharClass((), negated=True)


def grammar_error(reason: str) -> RequestError:
    """The 400 of a grammar that cannot be used; begins as llama-server's does."""
    return RequestError(f"Failed to initialize samplers: failed to parse grammar: {reason}")


def parse_gbnf(text: str, token_id: Callable[[str], int | None]) -> dict[str, Node]:
    """The rules by name; ``root`` and every rule referred to are there.

    ``token_id`` looks up what ``<text>`` names. Raises RequestError.
    """
    if len(text) > MAX_GRAMMAR_CHARS:
        raise grammar_error(f"longer than {MAX_GRAMMAR_CHARS} characters")
    rules = _Parser(text, token_id).rules()
    for missing in [name for name in references(rules.values()) if name not in rules]:
        raise grammar_error(f"undefined rule {missing!r}")
    if "root" not in rules:
        raise grammar_error("no rule named 'root'")
    return rules


def references(nodes: Iterable[Node]) -> Iterator[str]:
    """Names of the rules that ``nodes`` mention."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if isinstance(node, Ref):
            yield node.name
        stack.extend(children(node))


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Sequence(items):
            return items
        case Choice(options):
            return options
        case Repeat(item, _, _):
            return (item,)
    return ()


class _Parser:
    """Recursive descent; ``_at`` is the position in the text."""

    def __init__(self, text: str, token_id: Callable[[str], int | None]) -> None:
        self._text = text
        self._at = 0
        self._token_id = token_id

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._matched(_NAME, "a rule name").group()
            self._skip(_SPACE)
            self._expect("::=")
            self._skip(_SPACE_AND_LINES)
            found[name] = self._choice(depth=0)
            if self._peek() not in ("", "\r", "\n"):
                raise self._error("expected the end of the line")
            self._skip(_SPACE_AND_LINES)
        return found

    def _choice(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise self._error(f"more than {MAX_NESTING} nested parentheses")
        options = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            self._skip(_SPACE_AND_LINES)
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, depth: int) -> Node:
        items: list[Node] = []
        space = _SPACE_AND_LINES if depth else _SPACE
        while (char := self._peek()) and char not in "|)\r\n":
            if char in "*+?{":
                if not items:
                    raise self._error(f"nothing to repeat before {char!r}")
                items.append(self._repeated(items.pop()))
            else:
                items.append(self._item(depth))
            self._skip(space)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self, depth: int) -> Node:
        match self._peek():
            case '"':
                return self._literal()
            case "[":
                return self._char_class()
            case ".":
                self._at += 1
                return ANY_CHAR
            case "(":
                self._at += 1
                self._skip(_SPACE_AND_LINES)
                inner = self._choice(depth + 1)
                self._expect(")")
                return inner
            case "<" | "!":
                return self._token()
        return Ref(self._matched(_NAME, "a rule name, string, class or group").group())

    def _repeated(self, item: Node) -> Node:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if (char := self._peek()) in simple:
            self._at += 1
            return Repeat(item, *simple[char])
        counts = self._matched(_COUNTS, "{m}, {m,} or {m,n}")
        least, comma, most = counts.groups()
        upper = int(most) if most else None if comma else int(least)
        if (most and not comma) or (upper is not None and upper < int(least)):
            raise self._error(f"impossible repetition {counts.group()}")
        return Repeat(item, int(least), upper)

    def _literal(self) -> Literal:
        self._at += 1
        chars: list[str] = []
        while self._peek() != '"':
            chars.append(self._char("a string"))
        self._at += 1
        return Literal("".join(chars))

    def _char_class(self) -> CharClass:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[str, str]] = []
        while self._peek() != "]":
            low = high = self._char("a character class")
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._char("a character class")
            if high < low:
                raise self._error(f"empty range {low!r}-{high!r}")
            ranges.append((low, high))
        self._at += 1
        if not ranges and not negated:
            raise self._error("empty character class")
        return CharClass(tuple(ranges), negated)

    def _char(self, within: str) -> str:
        char = self._peek()
        if not char:
            raise self._error(f"the grammar ends within {within}")
        self._at += 1
        if char != "\\":
            return char
        escape = self._peek()
        self._at += 1
        if digits := _HEX_ESCAPES.get(escape):
            return self._hex(digits)
        if escape not in _ESCAPES:
            raise self._error(f"unknown escape \\{escape}")
        return _ESCAPES[escape]

    def _hex(self, digits: int) -> str:
        number = self._text[self._at : self._at + digits]
        if not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", number) or int(number, 16) > 0x10FFFF:
            raise self._error(f"bad character number {number!r}")
        self._at += digits
        return chr(int(number, 16))

    def _token(self) -> Token:
        negation, number, name = self._matched(_TOKEN, "<token> or <[id]>").groups()
        found = int(number) if number else self._token_id(f"<{name}>")
        if found is None:
            raise self._error(f"<{name}> is not a token of this model")
        return Token(found, negated=bool(negation))

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        if found := pattern.match(self._text, self._at):
            self._at = found.end()

    def _matched(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if not found:
            raise self._error(f"expected {what}")
        self._at = found.end()
        return found

    def _expect(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            raise self._error(f"expected {text!r}")
        self._at += len(text)

    def _error(self, reason: str) -> RequestError:
        line = self._text.count("\n", 0, self._at) + 1
        return grammar_error(f"line {line}: {reason}")
