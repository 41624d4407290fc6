"""A Responses body as the OpenAI chat form: items become messages, one after the other.

What one turn of an assistant is made of (reasoning, text, calls) comes as separate items and is
put together again. Nothing is stored, so there is no earlier response to refer to.
"""

import logging
from collections.abc import Mapping
from typing import Any

from gguf_hybrid.errors import RequestError

log = logging.getLogger(__name__)

Json = dict[str, Any]

_OWN_FIELDS = ("input", "instructions", "tools", "max_output_tokens", "reasoning", "text")
_USER_ROLES = ("user", "system", "developer")


def openai_body(body: Mapping[str, Any]) -> Json:
    """The chat completion body that asks for the same."""
    if "input" not in body:
        raise RequestError("'input' is required")
    if body.get("previous_response_id"):
        raise RequestError("'previous_response_id' is not supported: no response is stored")
    converted = {name: value for name, value in body.items() if name not in _OWN_FIELDS}
    converted["messages"] = [*_instructions(body), *_messages(body["input"])]
    if body.get("tools") is not None:
        converted["tools"] = _tools(body["tools"])
    if "max_output_tokens" in body:
        converted["max_tokens"] = body["max_output_tokens"]
    if isinstance(reasoning := body.get("reasoning"), dict) and "effort" in reasoning:
        converted["reasoning_effort"] = reasoning["effort"]
    if isinstance(text := body.get("text"), dict) and isinstance(text.get("format"), dict):
        converted["response_format"] = _response_format(text["format"])
    return converted


def _instructions(body: Mapping[str, Any]) -> list[Json]:
    instructions = body.get("instructions")
    return [] if instructions is None else [{"role": "system", "content": instructions}]


def _response_format(form: Json) -> Json:
    """The chat form keeps a schema one level deeper."""
    return {"type": form.get("type"), "json_schema": form} if "schema" in form else form


def _messages(items: object) -> list[Json]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise RequestError("'input' must be a string or array of objects")
    messages: list[Json] = []
    for item in items:
        _add(messages, item if isinstance(item, dict) else {})
    return messages


def _add(messages: list[Json], item: Json) -> None:
    kind, role = item.get("type", "message"), item.get("role")
    content = item.get("content")
    if kind == "message" and role in _USER_ROLES and isinstance(content, str | list):
        messages.append({"role": role, "content": _parts(content, _input_part)})
    elif kind == "message" and role == "assistant" and isinstance(content, str | list):
        turn = _assistant_turn(messages)
        turn["content"] = [*turn["content"], *_parts(content, _output_part)]
    elif kind == "function_call" and _has_texts(item, "call_id", "name", "arguments"):
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        _assistant_turn(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output" and _has_texts(item, "call_id"):
        messages.append(_tool_message(item))
    elif kind == "reasoning":
        _add_reasoning(messages, content)
    else:
        raise RequestError("Cannot determine type of 'item'")


def _assistant_turn(messages: list[Json]) -> Json:
    """The assistant's message at the end, begun here if there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": []})
    return messages[-1]


def _add_reasoning(messages: list[Json], content: object) -> None:
    """Reasoning that was sent as a summary only cannot be put back, and is left out."""
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and _has_texts(part, "text")]
    if texts:
        _assistant_turn(messages)["reasoning_content"] = "".join(texts)


def _tool_message(item: Json) -> Json:
    output = item.get("output")
    if not isinstance(output, str | list):
        raise RequestError("'output' of a tool call must be a string or an array")
    content = _parts(output, _input_part) if isinstance(output, list) else output
    return {"role": "tool", "tool_call_id": item["call_id"], "content": content}


def _parts(content: str | list[Any], read: Any) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [read(part if isinstance(part, dict) else {}) for part in content]


def _input_part(part: Json) -> Json:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            if not _has_texts(part, "text"):
                raise RequestError("'Input text' requires 'text'")
            return {"type": "text", "text": part["text"]}
        case "input_image":
            if "image_url" not in part:
                raise RequestError("'image_url' is required")
            return {"type": "image_url", "image_url": {"url": part["image_url"]}}
        case "input_file":
            raise RequestError("'input_file' is not supported")
    raise RequestError("'type' must be one of 'input_text', 'input_image', or 'input_file'")


def _output_part(part: Json) -> Json:
    match part.get("type"):
        case "output_text" | "input_text" | "text":
            if not _has_texts(part, "text"):
                raise RequestError("'Output text' requires 'text'")
            return {"type": "text", "text": part["text"]}
        case "refusal":
            if not _has_texts(part, "refusal"):
                raise RequestError("'Refusal' requires 'refusal'")
            return {"type": "text", "text": part["refusal"]}
    raise RequestError("'type' must be one of 'output_text' or 'refusal'")


def _tools(tools: object) -> list[Json]:
    """Function tools; what else OpenAI's servers would run themselves is left out."""
    if not isinstance(tools, list):
        raise RequestError("'tools' must be an array of objects")
    functions: list[Json] = []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind == "function":
            function = {name: value for name, value in tool.items() if name != "type"}
            functions.append({"type": "function", "function": function})
        else:
            log.warning("a tool of type %r is left out of a Responses request", kind)
    return functions


def _has_texts(item: Json, *names: str) -> bool:
    return all(isinstance(item.get(name), str) for name in names)
