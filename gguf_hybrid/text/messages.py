"""Chat messages and tools of a request, checked and brought into the form templates expect.

Which mistake is a 400 and which a 500, and the wording, follow llama-server: its clients match
on them. Unknown keys of a message are dropped, as there.
"""

import json
from typing import Any, NoReturn

from gguf_hybrid.errors import RequestError

Message = dict[str, Any]

_NO_MEDIA = {
    "image_url": "image",
    "input_audio": "audio",
    "input_video": "video",
    "video_url": "video",
}


def parse_messages(messages: object) -> list[Message]:
    """Messages with role, content (text, or a list of text parts) and what else they carry.

    ``developer`` becomes ``system``; arguments of tool calls become mappings.
    """
    if not isinstance(messages, list):
        raise RequestError("Expected 'messages' to be an array")
    for message in messages:
        _check_content(message if isinstance(message, dict) else {})
    return [_message(message) for message in messages]


def parse_tools(tools: object) -> list[dict[str, Any]]:
    """Function tools with name, description and parameters, in that order."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        _fail_tools(f"Expected 'tools' to be an array, got {_compact(tools)}", tools)
    return [_tool(tool, tools) for tool in tools]


def join_parts(content: str | list[dict[str, str]], separator: str) -> str:
    """The text of a content that may be given in parts."""
    if isinstance(content, str):
        return content
    return separator.join(part["text"] for part in content)


def _check_content(message: dict[str, Any]) -> None:
    is_assistant = message.get("role") == "assistant"
    if "content" not in message:
        if not is_assistant:
            raise RequestError("All non-assistant messages must contain 'content'")
        if "tool_calls" not in message:
            raise RequestError("Assistant message must contain either 'content' or 'tool_calls'!")
        return
    content = message["content"]
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise RequestError("Expected 'content' to be a string or an array")
    for part in content:
        _check_part(part)


def _check_part(part: object) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _NO_MEDIA:
        message = (
            f"{_NO_MEDIA[kind]} input is not supported"
            " - hint: if this is unexpected, you may need to provide the mmproj"
        )
        raise RequestError(message, status=500, kind="server_error")
    if kind != "text":
        raise RequestError("unsupported content[].type")


def _message(message: dict[str, Any]) -> Message:
    if "role" not in message:
        _fail_messages(f"Missing 'role' in message: {_compact(message)}")
    role = _string(message, "role")
    parsed: Message = {"role": "system" if role == "developer" else role}
    parsed["content"] = _content(message.get("content"))
    for key in ("reasoning_content", "name", "tool_call_id"):
        if message.get(key) not in (None, ""):
            parsed[key] = _string(message, key)
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            _fail_messages(f"Expected 'tool_calls' to be an array, got {_compact(calls)}")
        parsed["tool_calls"] = [_tool_call(call) for call in calls]
    return parsed


def _content(content: Any) -> str | list[dict[str, str]]:
    if isinstance(content, list):
        return [{"type": "text", "text": _string(part, "text")} for part in content]
    return content or ""


def _tool_call(call: object) -> dict[str, Any]:
    if not isinstance(call, dict) or "type" not in call:
        _fail_messages(f"Missing tool call type: {_compact(call)}")
    if call["type"] != "function":
        _fail_messages(f"Unsupported tool call type: {_compact(call)}")
    function = call.get("function")
    if not isinstance(function, dict):
        _fail_messages(f"Missing tool call function: {_compact(call)}")
    if "name" not in function:
        _fail_messages(f"Missing tool call name: {_compact(call)}")
    parsed = {"name": _string(function, "name"), "arguments": _arguments(function)}
    identity = {"id": _string(call, "id")} if call.get("id") else {}
    return {"type": "function", "function": parsed} | identity


def _arguments(function: dict[str, Any]) -> Any:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise RequestError(f"Failed to parse tool call arguments as JSON: {error}") from error


def _tool(tool: object, tools: object) -> dict[str, Any]:
    if not isinstance(tool, dict) or "type" not in tool:
        _fail_tools(f"Missing tool type: {_compact(tool)}", tools)
    if tool["type"] != "function":
        _fail_tools(f"Unsupported tool type: {_compact(tool)}", tools)
    if "function" not in tool:
        _fail_tools(f"Missing tool function: {_compact(tool)}", tools)
    function = tool["function"]
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        _fail_tools("[json.exception.out_of_range.403] key 'name' not found", tools)
    described = {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters", {}),
    }
    return {"type": "function", "function": described}


def _string(owner: Any, key: str) -> str:
    value = owner.get(key) if isinstance(owner, dict) else None
    if not isinstance(value, str):
        _fail_messages(f"'{key}' must be a string, but is {_compact(value)}")
    return value


def _fail_messages(reason: str) -> NoReturn:
    message = f"Failed to parse messages: {reason}"
    raise RequestError(message, status=500, kind="server_error")


def _fail_tools(reason: str, tools: object) -> NoReturn:
    shown = json.dumps(tools, indent=2, ensure_ascii=False)
    message = f"Failed to parse tools: {reason}; tools = {shown}"
    raise RequestError(message, status=500, kind="server_error")


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
