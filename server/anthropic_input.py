"""Anthropic's request body as the OpenAI form that all chats are read in.

Fields of llama.cpp are not passed on, as in llama-server. Types that make no sense are handed over
as they are: the reading of the OpenAI form says what is wrong with them.
"""

from collections.abc import Mapping
from typing import Any

from gguf_hybrid.errors import RequestError

from .errors import server_error
from .jsontext import dump, type_error

Json = dict[str, Any]

_PASSED_ON = ("temperature", "top_p", "top_k", "stream", "chat_template_kwargs")
_DEFAULT_MAX_TOKENS = 4096
_DEFAULT_THINKING_TOKENS = 10_000
_BILLING_HEADER = "x-anthropic-billing-header:"
_STAMP, _STAMP_LENGTH = "cch=", 5


def openai_body(body: Mapping[str, Any]) -> Json:
    """The chat completion body that asks for the same."""
    if "messages" not in body:
        raise server_error("'messages' is required")
    converted: Json = {"messages": [*_system(body.get("system")), *_messages(body["messages"])]}
    if isinstance(tools := body.get("tools"), list):
        converted["tools"] = [_tool(tool) for tool in tools]
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind in ("any", "tool"):
        converted["tool_choice"] = "required"
    if "stop_sequences" in body:
        converted["stop"] = body["stop_sequences"]
    converted["max_tokens"] = body.get("max_tokens", _DEFAULT_MAX_TOKENS)
    converted |= {name: body[name] for name in _PASSED_ON if name in body}
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        n_tokens = thinking.get("budget_tokens", _DEFAULT_THINKING_TOKENS)
        converted["thinking_budget_tokens"] = n_tokens
    return converted


def _system(system: object) -> list[Json]:
    if isinstance(system, str):
        return [{"role": "system", "content": _steady(system)}]
    if not isinstance(system, list):
        return []
    texts = [_steady(_text(block)) for block in system if _type(block) == "text"]
    return [{"role": "system", "content": "".join(texts)}]


def _steady(text: str) -> str:
    """Claude Code stamps every request anew; without the stamp the prompt can be reused."""
    at = text.find(_STAMP, len(_BILLING_HEADER)) + len(_STAMP)
    has_stamp = text.startswith(_BILLING_HEADER) and at >= len(_STAMP)
    if not has_stamp or text[at + _STAMP_LENGTH : at + _STAMP_LENGTH + 1] != ";":
        return text
    return text[:at] + "f" * _STAMP_LENGTH + text[at + _STAMP_LENGTH :]


def _messages(messages: object) -> list[Any]:
    if not isinstance(messages, list):
        raise RequestError(type_error("array", messages))
    return [converted for message in messages for converted in _message(message)]


def _message(message: Any) -> list[Any]:
    """A message may hold results of tools, which are messages of their own."""
    if not isinstance(message, dict):
        return [message]
    if "content" not in message and message.get("role") == "assistant":
        return []
    blocks = message.get("content")
    if not isinstance(blocks, list):
        return [message]
    parts = [part for block in blocks if (part := _part(block)) is not None]
    calls = [_tool_call(block) for block in blocks if _type(block) == "tool_use"]
    thought = "".join(
        str(block.get("thinking", "")) for block in blocks if _type(block) == "thinking"
    )
    converted: list[Any] = []
    if parts or calls or thought:
        said: Json = {"role": message.get("role"), "content": parts or ""}
        said |= {"tool_calls": calls} if calls else {}
        said |= {"reasoning_content": thought} if thought else {}
        converted.append(said)
    return converted + [_tool_result(block) for block in blocks if _type(block) == "tool_result"]


def _part(block: object) -> Json | None:
    """Text or an image as a content part; blocks that are told otherwise are None."""
    match _type(block):
        case "text":
            return {"type": "text", "text": _text(block)}
        case "image":
            return {"type": "image_url", "image_url": {"url": _image_url(block)}}
        case _:
            return None


def _image_url(block: Any) -> str:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "base64":
        kind = source.get("media_type", "image/jpeg")
        return f"data:{kind};base64,{source.get('data', '')}"
    return str(source.get("url", ""))


def _tool_call(block: Any) -> Json:
    arguments = dump(block.get("input", {})).decode()
    function = {"name": block.get("name", ""), "arguments": arguments}
    return {"id": block.get("id", ""), "type": "function", "function": function}


def _tool_result(block: Any) -> Json:
    """Text parts are joined; where there are images the parts stay apart."""
    content = block.get("content")
    if isinstance(content, list):
        parts = [part for inner in content if (part := _part(inner)) is not None]
        has_images = any(part["type"] != "text" for part in parts)
        content = parts if has_images else "".join(part["text"] for part in parts)
    elif not isinstance(content, str):
        content = ""
    return {"role": "tool", "tool_call_id": block.get("tool_use_id", ""), "content": content}


def _tool(tool: Any) -> Json:
    fields = tool if isinstance(tool, dict) else {}
    function = {
        "name": fields.get("name", ""),
        "description": fields.get("description", ""),
        "parameters": fields.get("input_schema", {}),
    }
    return {"type": "function", "function": function}


def _type(block: object) -> object:
    return block.get("type") if isinstance(block, dict) else None


def _text(block: Any) -> str:
    text = block.get("text", "")
    return text if isinstance(text, str) else ""
