"""What a chat reply consists of, in pieces and whole.

A whole reply is nothing but its pieces folded up, so a streamed answer cannot differ from the
one that is sent at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True)
class ContentDelta:
    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins; ``arguments`` is as much of their JSON text as came with it."""

    index: int
    id: str
    name: str
    arguments: str = ""


@dataclass(frozen=True)
class ToolCallArguments:
    """More of the JSON text of call ``index``."""

    index: int
    text: str


Delta = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # JSON text; unfinished if the reply was cut off


@dataclass(frozen=True)
class ChatMessage:
    """A reply; parts that did not occur are empty."""

    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = field(default=())


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """The same pieces, with neighbours of one kind joined and empty ones left out."""
    result: list[Delta] = []
    for delta in deltas:
        joined = _joined(result[-1], delta) if result else None
        if joined is not None:
            result[-1] = joined
        elif not isinstance(delta, ToolCallStart) and not delta.text:
            continue
        else:
            result.append(delta)
    return result


def fold(deltas: Iterable[Delta]) -> ChatMessage:
    """The reply that the pieces make up."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallStart(index, call_id, name, arguments):
                assert index == len(calls)
                calls.append(ToolCall(call_id, name, arguments))
            case ToolCallArguments(index, text):
                calls[index] = replace(calls[index], arguments=calls[index].arguments + text)
    return ChatMessage("".join(content), "".join(reasoning), tuple(calls))


def _joined(a: Delta, b: Delta) -> Delta | None:
    match a, b:
        case (ContentDelta(x), ContentDelta(y)):
            return ContentDelta(x + y)
        case (ReasoningDelta(x), ReasoningDelta(y)):
            return ReasoningDelta(x + y)
        case (ToolCallArguments(i, x), ToolCallArguments(j, y)) if i == j:
            return ToolCallArguments(i, x + y)
        case (ToolCallStart(index=i, arguments=x), ToolCallArguments(j, y)) if i == j:
            return replace(a, arguments=x + y)
    return None
