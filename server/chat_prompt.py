"""The prompt of a chat body: messages, tools and switches through the model's template.

Shared by ``/apply-template``, token counting and the chat routes, so that what is counted and shown
is what is run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gguf_hybrid.errors import RequestError
from gguf_hybrid.text.messages import Message, parse_messages, parse_tools
from gguf_hybrid.text.template import ChatPrompt

from .config import ChatConfig
from .context import Loaded
from .errors import server_error

Continue = Literal["content", "reasoning_content", "auto"]


@dataclass(frozen=True, slots=True)
class ChatInput:
    """A checked chat body, and its prompt."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    enable_thinking: bool
    continue_from: Continue | None
    prompt: ChatPrompt


def chat_input(model: Loaded, body: Mapping[str, Any]) -> ChatInput:
    """Read a chat body. RequestError has the status the reference gives each mistake."""
    if "messages" not in body:
        raise RequestError("'messages' is required")
    messages = parse_messages(body["messages"])
    tools = _tools(model, body)
    add_generation_prompt = body.get("add_generation_prompt") is not False
    continue_from = _continuation(model.config.chat, body, messages)
    kwargs = _template_kwargs(model.config.chat, body)
    thinking = bool(kwargs.pop("enable_thinking"))
    prompt = model.runtime.template.prompt(
        messages,
        tools,
        add_generation_prompt=add_generation_prompt,
        enable_thinking=thinking,
        continue_from=continue_from,
        kwargs=kwargs,
    )
    return ChatInput(messages, tools, thinking, continue_from, prompt)


def _tools(model: Loaded, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = parse_tools(body.get("tools"))
    if tools and not model.runtime.jinja:
        raise server_error("tools param requires --jinja flag")
    return tools


def _template_kwargs(config: ChatConfig, body: Mapping[str, Any]) -> dict[str, Any]:
    """Variables for the template: the server's, then the request's, then what fields stand for."""
    given = body.get("chat_template_kwargs")
    kwargs = {**config.template_kwargs, **(given if isinstance(given, dict) else {})}
    if config.reasoning_preserve:
        kwargs.setdefault("preserve_reasoning", True)
    effort = body.get("reasoning_effort") or config.reasoning_effort
    if effort == "none":
        kwargs["enable_thinking"] = False
    elif isinstance(effort, str) and effort != "default":
        kwargs["reasoning_effort"] = effort
    if isinstance(thinking := kwargs.get("enable_thinking"), str):
        raise RequestError(
            f"invalid type for 'enable_thinking' (expected boolean, got string '{thinking}')"
        )
    kwargs.setdefault("enable_thinking", config.reasoning != "off")
    kwargs["enable_thinking"] = kwargs["enable_thinking"] is not False
    return kwargs


def _continuation(
    config: ChatConfig, body: Mapping[str, Any], messages: list[Message]
) -> Continue | None:
    """What of a last assistant message the reply goes on with."""
    asked = body.get("continue_final_message")
    from_assistant = bool(messages) and messages[-1]["role"] == "assistant"
    if asked and body.get("add_generation_prompt") is not False:
        raise RequestError(
            "Cannot set both add_generation_prompt and continue_final_message to true."
        )
    if not from_assistant or not (asked or config.prefill_assistant):
        return None
    if len(messages) > 1 and messages[-2]["role"] == "assistant":
        raise RequestError("Cannot have 2 or more assistant messages at the end of the list.")
    return asked if asked in ("content", "reasoning_content") else "auto"
