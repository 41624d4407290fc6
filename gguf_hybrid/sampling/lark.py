"""Grammars in the Lark dialect of llguidance, which is what constraints are compiled from.

llguidance splits text into lexemes, each as long as possible; GBNF has no lexemes. So a regular
GBNF grammar becomes one regular expression, and any other one a grammar whose every lexeme is a
single character. Both accept exactly what the GBNF accepts.
"""

import json
from collections.abc import Callable, Mapping

from . import gbnf
from .regular import is_regular, without_right_recursion

# Without it a mask would allow one canonical spelling of forced text instead of every token.
OPTIONS = '%llguidance {"no_forcing": true}\n'


def lark_of_gbnf(text: str, token_id: Callable[[str], int | None] = lambda _: None) -> str:
    """A GBNF grammar as Lark. Raises RequestError (400) for what is not GBNF.

    ``token_id`` gives the id of a token such as ``<think>``, None for an unknown one.
    """
    rules = without_right_recursion(gbnf.parse_gbnf(text, token_id))
    return OPTIONS + (_Terminals(rules) if is_regular(rules) else _Characters(rules)).source()


class _Emitter:
    """Writes rules; ``prefix`` makes them lexemes (upper case) or syntax rules (lower case)."""

    prefix = ""

    def __init__(self, rules: Mapping[str, gbnf.Node]) -> None:
        self._rules = rules
        self._names = {name: f"{self.prefix}{i}" for i, name in enumerate(rules)}

    def source(self) -> str:
        lines = [f"start: {self._names['root']}"]
        lines += [f"{self._names[name]}: {self.write(node)}" for name, node in self._rules.items()]
        return "\n".join(lines) + "\n"

    def write(self, node: gbnf.Node) -> str:
        match node:
            case gbnf.Literal(text):
                return self.literal(text)
            case gbnf.CharClass():
                return char_class_regex(node)
            case gbnf.Token(number, negated):
                return f"<[{'^' * negated}{number}]>"
            case gbnf.Ref(name):
                return self._names[name]
            case gbnf.Sequence(items):
                return "(" + " ".join(map(self.write, items)) + ")" if items else '""'
            case gbnf.Choice(options):
                return "(" + " | ".join(map(self.write, options)) + ")"
            case gbnf.Repeat(item, least, most):
                return f"({self.write(item)}){{{least},{'' if most is None else most}}}"

    def literal(self, text: str) -> str:
        return quoted(text)


class _Terminals(_Emitter):
    prefix = "R"


class _Characters(_Emitter):
    prefix = "r"

    def literal(self, text: str) -> str:
        return "(" + " ".join(map(quoted, text)) + ")" if text else '""'


def quoted(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text, ensure_ascii=False)


def char_class_regex(node: gbnf.CharClass) -> str:
    if not node.ranges:
        return "/(?s:.)/"
    ranges = "".join(f"\\x{{{ord(a):x}}}-\\x{{{ord(b):x}}}" for a, b in node.ranges)
    return f"/[{'^' * node.negated}{ranges}]/"
