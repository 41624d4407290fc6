"""What a chat template can express, found by rendering small conversations.

A capability counts when a marker put into the conversation shows up in the prompt. The names are
those of ``chat_template_caps`` in ``/props``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .messages import Message
from .sandbox import RENDER_ERRORS

# Variables by which templates of several families keep the reasoning of earlier turns.
PRESERVE_REASONING: Mapping[str, bool] = {
    "preserve_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}
_MARK = "MARKER-1"
_MARK_2 = "MARKER-2"
_USER: Message = {"role": "user", "content": "User message"}

Render = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class TemplateCaps:
    supports_object_arguments: bool
    supports_parallel_tool_calls: bool
    supports_preserve_reasoning: bool
    supports_reasoning_effort: bool
    supports_string_content: bool
    supports_system_role: bool
    supports_tool_calls: bool
    supports_tools: bool
    supports_typed_content: bool


def find_caps(render: Render, source: str) -> TemplateCaps:
    """Probe a template given as a function from variables to text."""
    system = {"role": "system", "content": _MARK}
    parts = [{"type": "text", "text": _MARK}]
    typed = _probe(render, [{"role": "user", "content": parts}])
    as_objects = _probe(render, _tool_turns({"arg": _MARK}))
    as_text = _probe(render, _tool_turns(f'{{"arg": "{_MARK}"}}'))
    arguments = {"arg": _MARK} if _MARK in as_objects else f'{{"arg": "{_MARK}"}}'
    two = _probe(render, _tool_turns(arguments, n_calls=2))
    return TemplateCaps(
        supports_object_arguments=_MARK in as_objects and "{'arg'" not in as_objects,
        supports_parallel_tool_calls=_MARK_2 in two,
        supports_preserve_reasoning=_MARK in _probe(render, _reasoning_turns(), PRESERVE_REASONING),
        supports_reasoning_effort="reasoning_effort" in source,
        supports_string_content=_MARK in _probe(render, [{"role": "user", "content": _MARK}]),
        supports_system_role=_MARK in _probe(render, [system, _USER]),
        supports_tool_calls=_MARK in as_objects or _MARK in as_text,
        supports_tools=_MARK in _probe(render, [_USER], {"tools": [_tool()]}),
        supports_typed_content=_MARK in typed and "'type'" not in typed and '"type"' not in typed,
    )


def _probe(
    render: Render, messages: list[Message], variables: Mapping[str, Any] | None = None
) -> str:
    """The prompt, or nothing where the template refuses."""
    try:
        return render({"messages": messages, "add_generation_prompt": True, **(variables or {})})
    except RENDER_ERRORS:
        return ""


def _tool() -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"arg": {"type": "string"}}}
    function = {"name": _MARK, "description": "A tool", "parameters": parameters}
    return {"type": "function", "function": function}


def _tool_turns(arguments: Any, n_calls: int = 1) -> list[Message]:
    calls = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": name, "arguments": value}}
        for i, (name, value) in enumerate([("tool", arguments), (_MARK_2, {"arg": "value"})])
    ]
    return [
        _USER,
        {"role": "assistant", "content": "", "tool_calls": calls[:n_calls]},
        {"role": "tool", "content": "Tool response", "tool_call_id": "call00000"},
        {"role": "assistant", "content": "The answer"},
        _USER,
    ]


def _reasoning_turns() -> list[Message]:
    early = {"role": "assistant", "content": "Answer", "reasoning_content": _MARK}
    late = {"role": "assistant", "content": "Answer", "reasoning_content": "Reasoning"}
    return [_USER, early, _USER, late, _USER]
