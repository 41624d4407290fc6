"""The two ways a model of this family writes a tool call inside ``<tool_call>`` tags.

XML (Qwen3.5, Qwen3-Coder), streamed as it arrives:
    <function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n</function>
JSON (Hermes, Qwen2.5, Qwen3), reported when it is complete:
    {"name": NAME, "arguments": {...}}
Models err in the markup. A stray closing tag is skipped, a missing one supplied; anything that
is no call of a declared tool is handed back as content.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from .deltas import ContentDelta, Delta, ToolCallArguments, ToolCallStart
from .scanner import Match, Scanner
from .tags import END_TOOL_CALL, TOOL_CALL
from .tool_values import (
    NumberWriter,
    StringWriter,
    ToolSchemas,
    ValueWriter,
    loads_strictly,
    quoted,
    writer_for,
)

_FUNCTION = "<function="
_END_FUNCTION = "</function>"
_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"
_NAME = re.compile(r"[^<>\n]+(?=>)")
_BEGUN_NAME = re.compile(r"[^<>\n]*")
# What may follow the end of a value; a closing tag before anything else belongs to the value.
_AFTER_VALUE = (_PARAMETER, _END_FUNCTION, END_TOOL_CALL)


class ToolCallReader:
    """Reads from behind ``opening`` to the end of that block of calls.

    ``opening`` is the tag that led here; it is given back where no call follows. ``n_calls``
    counts the calls of the whole reply.
    """

    def __init__(
        self, tools: ToolSchemas, opening: str, n_calls: int, new_id: Callable[[], str]
    ) -> None:
        self.is_done = False
        self.n_calls = n_calls
        self.has_failed = False
        self._tools = tools
        self._opening = opening
        self._new_id = new_id
        self._state: Callable[[Scanner, list[Delta]], bool] = self._open
        self._function = ""
        self._n_parameters = 0
        self._writer: ValueWriter = StringWriter()
        self._skips_new_line = False
        self._is_in_stray_text = False
        self._json_searched = 0

    def read(self, scanner: Scanner) -> list[Delta]:
        """Read as far as possible."""
        deltas: list[Delta] = []
        while not self.is_done and self._state(scanner, deltas):
            pass
        return deltas

    # Each state reads what it can, appends deltas, and returns whether to go on at once.

    def _open(self, scanner: Scanner, deltas: list[Delta]) -> bool:
        blank = len(scanner.text) - len(scanner.text.lstrip())
        rest = scanner.text[blank:]
        if rest.startswith("{"):
            self._state = self._json
            return True
        name = _tag_name(rest, _FUNCTION)
        if name is not None and name in self._tools:
            scanner.take(blank + len(_FUNCTION) + len(name) + 1)
            self._start(name, "{", deltas)
            self._state = self._body
            return True
        if name or scanner.has_ended or not _may_become_tag(rest, _FUNCTION):
            return self._fail(deltas)
        return False

    def _body(self, scanner: Scanner, deltas: list[Delta]) -> bool:
        if not self._is_in_stray_text:
            scanner.skip_space()
        if name := _tag_name(scanner.text, _PARAMETER):
            scanner.take(len(_PARAMETER) + len(name) + 1)
            self._start_value(name, deltas)
            self._is_in_stray_text = False
            return True
        tag = scanner.begins_with(
            _END_FUNCTION, END_TOOL_CALL, TOOL_CALL, _FUNCTION, _END_PARAMETER
        )
        if tag is Match.OPEN or _may_become_tag(scanner.text, _PARAMETER):
            return self._finish(scanner) if scanner.has_ended else False
        if tag is Match.NO:
            n = scanner.text.find("<", 1)
            deltas.append(ContentDelta(scanner.take(n if n > 0 else len(scanner.text))))
            self._is_in_stray_text = True
            return True
        self._is_in_stray_text = False
        if tag == _END_PARAMETER:
            scanner.take(len(tag))
        else:
            scanner.take(len(tag) if tag == _END_FUNCTION else 0)
            self._write("}", deltas)
            self._state = self._after
        return True

    def _value(self, scanner: Scanner, deltas: list[Delta]) -> bool:
        if self._skips_new_line and scanner.text:
            scanner.text = scanner.text.removeprefix("\n")
            self._skips_new_line = False
        n_value, n_tag, is_certain = _find_value_end(scanner)
        self._write(self._writer.add(scanner.take(n_value)), deltas)
        if n_tag:
            scanner.take(n_tag)
            self._end_value(deltas)
        elif scanner.has_ended:
            scanner.text = ""
            self._write(self._writer.cut(), deltas)
            self.is_done = True
        return is_certain

    def _after(self, scanner: Scanner, deltas: list[Delta]) -> bool:
        scanner.skip_space()
        tag = scanner.begins_with(END_TOOL_CALL, _FUNCTION)
        if tag is Match.OPEN:
            return self._finish(scanner) if scanner.has_ended else False
        if tag == _FUNCTION:
            self._opening = ""
            self._state = self._open
            return True
        if tag == END_TOOL_CALL:
            scanner.take(len(END_TOOL_CALL))
        self.is_done = True
        return False

    def _json(self, scanner: Scanner, deltas: list[Delta]) -> bool:
        end = scanner.text.find(END_TOOL_CALL, self._json_searched)
        if end < 0 and not scanner.has_ended:
            self._json_searched = max(0, len(scanner.text) - len(END_TOOL_CALL) + 1)
            return False
        body = scanner.text if end < 0 else scanner.text[:end]
        try:
            call = loads_strictly(body)
        except ValueError as error:
            if end >= 0 and "Unterminated string" in str(error):  # the tag is part of a string
                self._json_searched = end + 1
                return True
            return self._fail(deltas)
        if not isinstance(call, dict) or call.get("name") not in self._tools.names:
            return self._fail(deltas)
        self._start(call["name"], _json_arguments(call), deltas)
        scanner.take(len(body))
        self._state = self._after
        return True

    def _start(self, name: str, arguments: str, deltas: list[Delta]) -> None:
        self._function = name
        self._n_parameters = 0
        deltas.append(ToolCallStart(self.n_calls, self._new_id(), name, arguments))
        self.n_calls += 1

    def _start_value(self, name: str, deltas: list[Delta]) -> None:
        self._writer, opening = writer_for(self._tools.value_types(self._function, name))
        comma = "," if self._n_parameters else ""
        self._n_parameters += 1
        self._write(f"{comma}{quoted(name)}:{opening}", deltas)
        self._skips_new_line = True
        self._state = self._value

    def _end_value(self, deltas: list[Delta]) -> None:
        self._write(self._writer.end(), deltas)
        if isinstance(self._writer, NumberWriter):
            deltas.append(ContentDelta(self._writer.leftover))
        self._state = self._body

    def _write(self, text: str, deltas: list[Delta]) -> None:
        deltas.append(ToolCallArguments(self.n_calls - 1, text))

    def _fail(self, deltas: list[Delta]) -> bool:
        """Give the opening tag back as content; what follows it is still unread."""
        deltas.append(ContentDelta(self._opening))
        self.has_failed = self.is_done = True
        return False

    def _finish(self, scanner: Scanner) -> bool:
        """Drop markup that the end of the reply cut off."""
        scanner.text = ""
        self.is_done = True
        return False


def _tag_name(text: str, opening: str) -> str | None:
    """NAME if the text begins with the whole tag ``<opening=NAME>``."""
    if not text.startswith(opening):
        return None
    name = _NAME.match(text, len(opening))
    return name[0] if name else None


def _may_become_tag(text: str, opening: str) -> bool:
    if len(text) <= len(opening):
        return opening.startswith(text)
    return text.startswith(opening) and bool(_BEGUN_NAME.fullmatch(text, len(opening)))


def _find_value_end(scanner: Scanner) -> tuple[int, int, bool]:
    """(characters of value that are certain, then of the closing tag or 0, whether to go on).

    The last new line belongs to the tag. ``</parameter>`` on a line of its own always ends the
    value; elsewhere only if a tag follows.
    """
    text, begin = scanner.text, 0
    while (at := text.find(_END_PARAMETER, begin)) >= 0:
        has_new_line = at > 0 and text[at - 1] == "\n"
        n_value = at - has_new_line
        after = at + len(_END_PARAMETER)
        rest = text[after:].lstrip()
        if (has_new_line and text[after : after + 1] == "\n") or rest.startswith(_AFTER_VALUE):
            return n_value, after - n_value, True
        if any(tag.startswith(rest) for tag in _AFTER_VALUE):
            return n_value, (after - n_value if scanner.has_ended else 0), scanner.has_ended
        begin = after
    n_held = scanner.n_uncertain("\n" + _END_PARAMETER, _END_PARAMETER)
    return len(text) - n_held, 0, False


def _json_arguments(call: dict[str, Any]) -> str:
    """Arguments as JSON text; some models write the object as a string of JSON."""
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):
        return arguments
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
