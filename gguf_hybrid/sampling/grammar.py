"""From what a client asks for to a constraint on the output: the one door to grammars.

A ``Grammar`` is made where the request is read, travels with it, and is compiled where the
vocabulary is. It is checked in both places; either raises a RequestError with status 400.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .constraint import Constraint, GrammarVocab, LazyConstraint, Trigger
from .json_schema import WHITESPACE, json_rule
from .lark import OPTIONS, lark_of_gbnf
from .tool_grammar import CALL, lark_of_tools


class Thinking(Enum):
    """How the prompt leaves the reasoning part."""

    NONE = "none"  # closed, or the model has none
    OPEN = "open"  # the prompt ended within it
    OPTIONAL = "optional"  # the model may begin one


# What comes before a constrained answer.
_PREFIXES = {
    Thinking.NONE: "",
    Thinking.OPEN: "thought SPACE ",
    Thinking.OPTIONAL: '("<think>" thought)? SPACE ',
}
_PREFIX_RULES = rf"""
thought[lazy]: /(?s:.*)<\/think>/
SPACE: /({WHITESPACE})?/
"""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A Lark grammar; with ``triggers`` it sleeps until one of them shows in the output."""

    lark: str
    triggers: tuple[Trigger, ...] = ()

    @classmethod
    def from_gbnf(
        cls,
        text: str,
        triggers: Sequence[Trigger] = (),
        token_id: Callable[[str], int | None] = lambda _: None,
    ) -> "Grammar":
        """A client's own grammar: it binds from the first token, reasoning included."""
        return cls(lark_of_gbnf(text, token_id), tuple(triggers))

    @classmethod
    def from_schema(cls, schema: object, thinking: Thinking = Thinking.NONE) -> "Grammar":
        """One JSON value of ``schema`` (``{}``: any object), after the reasoning."""
        start = f"start: {_PREFIXES[thinking]}answer\nanswer: {json_rule(schema)}\n"
        return cls(OPTIONS + start + (_PREFIX_RULES if thinking is not Thinking.NONE else ""))

    @classmethod
    def for_tools(
        cls, tools: Sequence[Mapping[str, Any]], *, required: bool, parallel: bool
    ) -> "Grammar":
        """Calls of ``tools`` (their ``function`` objects).

        ``required``: text, then at least one call. Otherwise text is free, and a ``<tool_call>``
        in it, which also ends an open reasoning part, must become a well-formed call.
        """
        lark = lark_of_tools(tools, parallel=parallel, free_text=required)
        return cls(lark, () if required else (Trigger(text=CALL),))

    def start(self, vocab: GrammarVocab) -> Constraint | LazyConstraint:
        """The constraint of a new output. Compiling may take a second for huge schemas."""
        constraint = Constraint(self.lark, vocab)
        return LazyConstraint(constraint, self.triggers, vocab) if self.triggers else constraint
