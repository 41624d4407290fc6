"""Chat messages to a prompt, through the Jinja template of the model file or of a flag.

Besides the prompt the caller learns what the prompt already holds of the reply (an open
``<think>``, an assistant text to be continued): the parser of the reply has to read that first.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from gguf_hybrid.errors import ConfigError, RequestError

from .messages import Message, join_parts
from .sandbox import (
    COMPILE_ERRORS,
    MAX_SECONDS,
    RENDER_ERRORS,
    TemplateSandbox,
    render_within_budget,
)
from .tags import END_THINK, END_TOOL_CALL, THINK, TOOL_CALL
from .template_caps import PRESERVE_REASONING, TemplateCaps, find_caps

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
_LLAMA3 = (
    "{%- for message in messages -%}"
    "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' -}}"
    "{{- message.content | trim + '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}"
    "{%- endif -%}"
)
_COMMAND_R = (
    "{%- set tokens = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} -%}"
    "{%- for message in messages -%}"
    "{{- '<|START_OF_TURN_TOKEN|><|' + tokens[message.role] + '_TOKEN|>' -}}"
    "{{- message.content | trim + '<|END_OF_TURN_TOKEN|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' -}}"
    "{%- endif -%}"
)
BUILT_IN: Mapping[str, str] = {"chatml": CHATML, "llama3": _LLAMA3, "command-r": _COMMAND_R}

_CHATML_DELIMITERS = (
    ("tool", "<|im_start|>user\n<tool_response>"),
    ("assistant", "<|im_start|>assistant"),
    ("user", "<|im_start|>user"),
    ("system", "<|im_start|>system"),
)

Continuation = Literal["content", "reasoning_content", "auto"]


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation.

    ``generation_prompt`` is the end of ``text`` that belongs to the reply, its role header
    included; ``reply_prefix`` is the same without the header: what a parser reads before output.
    """

    text: str
    generation_prompt: str
    reply_prefix: str

    @property
    def opens_thinking(self) -> bool:
        """Whether the reply begins inside a thinking part."""
        return THINK in self.reply_prefix and END_THINK not in self.reply_prefix


class ChatTemplate:
    """A compiled template. Rendering never changes it; several threads may use one."""

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        *,
        add_bos: bool = False,
        add_eos: bool = False,
    ) -> None:
        """``add_bos``/``add_eos``: the tokenizer adds them, so the prompt must not."""
        self.source = BUILT_IN.get(source, source)
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token}
        self._strip_bos = bos_token if add_bos else ""
        self._strip_eos = eos_token if add_eos else ""
        try:
            self._template = TemplateSandbox().from_string(self.source)
        except COMPILE_ERRORS as error:
            line = getattr(error, "lineno", None)
            where = f" (line {line})" if line else ""
            raise ConfigError(f"chat template: {error}{where}") from error

    @property
    def thinks(self) -> bool:
        """Whether replies may open with a thinking part in tags."""
        return THINK in self.source

    @property
    def calls_tools(self) -> bool:
        """Whether the template writes tool calls in ``<tool_call>`` tags."""
        return TOOL_CALL in self.source

    @property
    def preserved_tokens(self) -> tuple[str, ...]:
        """Special tokens whose text the reply's parser needs to see."""
        calls = (TOOL_CALL, END_TOOL_CALL) if self.calls_tools else ()
        return calls + ((THINK, END_THINK) if self.thinks else ())

    @property
    def message_delimiters(self) -> tuple[tuple[str, str], ...]:
        """(role, text a message of it begins with), the longer texts first; ChatML only."""
        return _CHATML_DELIMITERS if "<|im_start|>" in self.source else ()

    @cached_property
    def caps(self) -> TemplateCaps:
        """What the template can express, found by rendering probes within one budget of time."""
        deadline = time.monotonic() + MAX_SECONDS

        def render(variables: Mapping[str, Any]) -> str:
            left = deadline - time.monotonic()
            return render_within_budget(self._template, self._fixed | dict(variables), left)

        return find_caps(render, self.source)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text; RequestError (400) with the template's own message if it refuses.

        ``kwargs`` are further variables of the template (``chat_template_kwargs``); an
        ``enable_thinking`` among them wins.
        """
        switches = {"enable_thinking": enable_thinking, **(kwargs or {})}
        if isinstance(switches["enable_thinking"], str):
            message = 'invalid type for "enable_thinking" (expected boolean, got string)'
            raise RequestError(message)
        text = self._render(messages, tools, add_generation_prompt, switches)
        is_off = switches["enable_thinking"] is False
        if add_generation_prompt and is_off and text.rstrip().endswith(THINK):
            text += END_THINK  # the template ignores the switch
        return text

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool = True,
        continue_from: Continuation | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render, and tell apart what the prompt holds of the reply.

        With ``continue_from`` the last message (the assistant's) is begun anew after the
        generation prompt, so that the reply goes on with it: with its content, or inside its
        reasoning; ``auto`` takes the reasoning if there is no content.
        """
        history = messages[:-1] if continue_from else messages
        bare, full = (
            self.render(
                history,
                tools,
                add_generation_prompt=adds,
                enable_thinking=enable_thinking,
                kwargs=kwargs,
            )
            for adds in (False, True)
        )
        opened = full[_common_length(bare, full) :]
        header = opened.partition(THINK)[0] if self.thinks else opened
        if continue_from:
            begun = self._begun(messages[-1], continue_from)
            return ChatPrompt(bare + header + begun, header + begun, begun)
        shown = full if add_generation_prompt else bare
        return ChatPrompt(shown, opened, opened.removeprefix(header))

    def _begun(self, message: Message, continue_from: Continuation) -> str:
        reasoning = message.get("reasoning_content", "")
        content = join_parts(message.get("content", ""), "\n\n")
        in_reasoning = continue_from == "reasoning_content" or (
            continue_from == "auto" and bool(reasoning) and not content
        )
        if not self.thinks:
            return "" if in_reasoning else content
        opened = f"{THINK}\n{reasoning}"
        return opened if in_reasoning else f"{opened}\n{END_THINK}\n\n{content}"

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        switches: Mapping[str, Any],
    ) -> str:
        now = datetime.now()
        variables = {
            "datetime": now.strftime("%b %d %Y"),
            "date_string": now.strftime("%d %b %Y"),
            "messages": self._adapted(messages),
            "add_generation_prompt": add_generation_prompt,
            **self._fixed,
            **({"tools": list(tools)} if tools else {}),
            **_spread(switches),
        }
        try:
            text = self._render_raw(variables)
        except RENDER_ERRORS as error:
            raise RequestError(str(error) or type(error).__name__) from error
        return text.removeprefix(self._strip_bos).removesuffix(self._strip_eos)

    def _render_raw(self, variables: Mapping[str, Any]) -> str:
        return render_within_budget(self._template, self._fixed | dict(variables))

    def _adapted(self, messages: Sequence[Message]) -> list[Message]:
        """Messages in the one content form the template understands."""
        if self.caps.supports_typed_content and self.caps.supports_string_content:
            adapted = [dict(message) for message in messages]
        elif self.caps.supports_typed_content:
            adapted = [{**m, "content": _as_parts(m["content"])} for m in messages]
        else:
            adapted = [{**m, "content": join_parts(m["content"], "\n")} for m in messages]
        return adapted if self.caps.supports_system_role else _without_system(adapted)


def _spread(switches: Mapping[str, Any]) -> dict[str, Any]:
    """Each switch under every name that some family of templates reads it by."""
    spread = dict(switches)
    if isinstance(keep := switches.get("preserve_reasoning"), bool):
        spread |= {name: keep is value for name, value in PRESERVE_REASONING.items()}
    if isinstance(effort := switches.get("reasoning_effort"), str):
        spread["reasoning_strength"] = effort
    return spread


def without_jinja(name: str = "chatml") -> ChatTemplate:
    """What ``--no-jinja`` stands for: a built-in form. Raises ConfigError for another template."""
    if name not in BUILT_IN:
        known = ", ".join(BUILT_IN)
        raise ConfigError(f"--chat-template: without jinja it must be the name of one of: {known}")
    return ChatTemplate(name)


def _as_parts(content: str | list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _without_system(messages: list[Message]) -> list[Message]:
    """Put a leading system text in front of the next message."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages[1:] if messages and messages[0]["role"] == "system" else messages
    texts = [join_parts(message["content"], "\n") for message in messages[:2]]
    return [{**messages[1], "content": "\n".join(texts)}, *messages[2:]]


def _common_length(a: str, b: str) -> int:
    if b.startswith(a):  # as a rule; conversations are long
        return len(a)
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
