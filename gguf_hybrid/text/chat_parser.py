"""A model's reply, as it is generated, to reasoning, content and tool calls.

The parser reads the end of the prompt first (``reply_prefix``): a Qwen3.5 prompt already opens
the thinking part, and a reply to be continued begins there. Whatever the parser cannot make sense
of it returns as content; it never raises and never loses text.
"""

import secrets
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, cast, get_args

from gguf_hybrid.errors import RequestError

from .deltas import ContentDelta, Delta, ReasoningDelta, merged
from .scanner import Match, Scanner
from .tags import END_THINK, THINK, TOOL_CALL
from .tool_formats import ToolCallReader
from .tool_values import ToolSchemas

ReasoningFormat = Literal["none", "deepseek", "deepseek-legacy", "auto"]


def parse_reasoning_format(name: str) -> ReasoningFormat:
    """Check a name; all but ``none`` act alike, as in llama-server."""
    if name not in get_args(ReasoningFormat):
        message = f"Unknown reasoning format: {name}"
        raise RequestError(message, status=500, kind="server_error")
    return cast(ReasoningFormat, name)


def random_id() -> str:
    """32 letters and digits, as llama-server names calls and completions."""
    alphabet = string.ascii_letters + string.digits
    return "".join(secrets.choice(alphabet) for _ in range(32))


class ChatParser:
    """Parses one reply.

    ``tools``: the declared tools (see ``parse_tools`` in messages) whose calls to report; none to
    leave calls in the content. ``thinks``: the template knows ``<think>`` tags.
    """

    def __init__(
        self,
        tools: Iterable[Mapping[str, Any]] = (),
        *,
        thinks: bool,
        reasoning_format: ReasoningFormat = "auto",
        reply_prefix: str = "",
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self._tools = ToolSchemas(tools)
        self._new_id = new_id
        self._extracts_reasoning = thinks and reasoning_format != "none"
        # Models without thinking sometimes leave out <tool_call>.
        bare = () if thinks else tuple(f"<function={name}>" for name in self._tools.names)
        self._call_markers = (TOOL_CALL, *bare) if self._tools.names else ()
        self._trims = thinks or bool(self._call_markers)
        self._scanner = Scanner()
        self._scanner.push(reply_prefix)
        self._call: ToolCallReader | None = None
        self._n_calls = 0
        self._state: Callable[[list[Delta]], bool] = self._opening

    def push(self, text: str) -> list[Delta]:
        """What the reply is now known to contain in addition."""
        self._scanner.push(text)
        return self._read()

    def finish(self) -> list[Delta]:
        """What was held back, once no more text comes."""
        self._scanner.end()
        return self._read()

    def _read(self) -> list[Delta]:
        deltas: list[Delta] = []
        while self._state(deltas):
            pass
        return merged(deltas)

    # Each state reads what it can, appends deltas, and returns whether to go on at once.

    def _opening(self, deltas: list[Delta]) -> bool:
        if self._trims:
            self._scanner.skip_space()
        if self._extracts_reasoning:
            tag = self._scanner.begins_with(THINK)
            if tag is Match.OPEN and not self._scanner.has_ended:
                return False
            if tag == THINK:
                self._scanner.take(len(THINK))
                return self._go_to(self._reasoning, trims=True)
        return self._go_to(self._content, trims=self._trims)

    def _reasoning(self, deltas: list[Delta]) -> bool:
        if self._is_blank():
            return False
        text, tag = self._scanner.take_until(END_THINK, TOOL_CALL)
        deltas.append(ReasoningDelta(text))
        if tag is None:
            return False
        if tag == TOOL_CALL:  # a call ends an open thinking part
            self._scanner.text = tag + self._scanner.text
        return self._go_to(self._content, trims=True)

    def _content(self, deltas: list[Delta]) -> bool:
        if self._is_blank():
            return False
        text, tag = self._scanner.take_until(*self._call_markers)
        deltas.append(ContentDelta(text))
        if tag is None:
            return False
        if tag != TOOL_CALL:
            self._scanner.text = tag + self._scanner.text
        opening = tag if tag == TOOL_CALL else ""
        self._call = ToolCallReader(self._tools, opening, self._n_calls, self._new_id)
        return self._go_to(self._calling, trims=False)

    def _calling(self, deltas: list[Delta]) -> bool:
        assert self._call is not None
        deltas += self._call.read(self._scanner)
        if not self._call.is_done:
            return False
        self._n_calls = self._call.n_calls
        return self._go_to(self._content, trims=not self._call.has_failed)

    def _go_to(self, state: Callable[[list[Delta]], bool], *, trims: bool) -> bool:
        self._state = state
        self._trims = trims
        return True

    def _is_blank(self) -> bool:
        """Skip blanks at the start of a part; whether nothing else is there yet."""
        if self._trims:
            self._scanner.skip_space()
            self._trims = not self._scanner.text
        return self._trims
