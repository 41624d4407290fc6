"""A chat body as engine requests, and the reply as pieces: what every chat dialect is made of.

The dialects (OpenAI, Anthropic, Responses) turn their bodies into the one form read here and shape
the pieces a ``ChatChoice`` hands them; the whole answer is the pieces folded, so a stream and an
answer that is not streamed cannot disagree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

from gguf_hybrid.engine.request import Done, Token
from gguf_hybrid.errors import RequestError
from gguf_hybrid.sampling.grammar import Grammar, Thinking
from gguf_hybrid.sampling.reasoning_budget import ReasoningBudget
from gguf_hybrid.text.chat_parser import ChatParser, ReasoningFormat
from gguf_hybrid.text.deltas import ChatMessage, Delta, fold
from gguf_hybrid.text.tags import END_THINK, TOOL_CALL

from .chat_cuts import chat_cuts
from .chat_options import (
    Tools,
    answer_schema,
    callable_tools,
    check_before_messages,
    completion_fields,
)
from .chat_prompt import ChatInput, chat_input
from .completion import TRIGGER_TOKEN, Completion, Ids, make_completions, own_grammar
from .context import Loaded
from .errors import server_error
from .results import Json, NativeChoice
from .schema import CompletionParams
from .thinking import Budgets, ThinkingLimit

_PARSED, _UNPARSED = "peg-native", "Content-only"


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat request, ready to run."""

    model: Loaded
    params: CompletionParams
    completions: list[Completion]
    tools: Tools
    reply_prefix: str
    budgets: list[ReasoningBudget]
    """Those of choices whose thinking another request may end."""

    def choices(self) -> list["ChatChoice"]:
        return [ChatChoice(self, completion) for completion in self.completions]

    def parser(self) -> ChatParser:
        """A parser for one reply."""
        model, format = self.model, self.params.reasoning_format
        if not model.runtime.jinja or model.config.chat.skip_parsing:
            return ChatParser(thinks=False)
        return ChatParser(
            self.tools.declared,
            thinks=model.runtime.template.thinks,
            reasoning_format=cast(ReasoningFormat, format),
            reply_prefix=self.reply_prefix,
        )


def make_chat(model: Loaded, body: Mapping[str, Any]) -> Chat:
    """Read, render and tokenise a chat body, and compile its grammar: call it off the loop.

    RequestError for everything that is wrong with it.
    """
    _check_reasoning_format(body)
    check_before_messages(body, jinja=model.runtime.jinja)
    chat = chat_input(model, body)
    prefix = chat.prompt.reply_prefix
    tools = _tools(model, body, chat)
    params = _params(model, body, chat, tools)
    ids = prompt_ids(model, chat)
    budgets = Budgets(model, ThinkingLimit.of(body, model.config.chat), prefix)
    (completions,) = make_completions(
        model,
        params,
        [ids],
        grammar=_grammar(model, params, tools, answer_schema(body), chat),
        budget=budgets.new,
        kind="chat",
        boundaries=chat_cuts(model, chat.prompt, ids),
    )
    return Chat(model, params, completions, tools, prefix, budgets.controlled)


def prompt_ids(model: Loaded, chat: ChatInput) -> Ids:
    return tuple(model.tokenizer.encode(chat.prompt.text, add_special=True))


def count_tokens(model: Loaded, body: Mapping[str, Any]) -> int:
    """The length of the prompt a chat body makes."""
    return len(prompt_ids(model, chat_input(model, body)))


@dataclass(slots=True)
class Step:
    """What one event adds to a reply. ``logprobs`` and ``timings`` are there when asked for."""

    deltas: list[Delta] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    timings: Json | None = None
    is_first: bool = False


class ChatChoice:
    """One reply in the making."""

    def __init__(self, chat: Chat, completion: Completion) -> None:
        model = chat.model
        self.native = NativeChoice(
            completion.index,
            completion.request.prompt,
            replace(completion.params, response_fields=()),
            completion.settings,
            model.tokenizer,
            model=model.model_name,
            special=model.config.special,
        )
        self.index = completion.index
        self._parser = chat.parser()
        self._deltas: list[Delta] = []
        self._has_begun = False

    def token(self, event: Token) -> Step:
        is_first, self._has_begun = not self._has_begun, True
        chunk = self.native.token(event) or {}
        deltas = self._parser.push(event.text) if event.text or is_first else []
        self._deltas += deltas
        logprobs = cast(list[Json], chunk.get("completion_probabilities", []))
        return Step(deltas, logprobs, cast(Json | None, chunk.get("timings")), is_first)

    def finish(self, done: Done) -> Step:
        """The end of the reply: text that was held back until now."""
        is_first, self._has_begun = not self._has_begun, True
        last = self.native.finish(done)
        deltas = self._parser.push(cast(str, last["content"])) + self._parser.finish()
        self._deltas += deltas
        return Step(deltas, timings=cast(Json, last["timings"]), is_first=is_first)

    @property
    def done(self) -> Done:
        """The engine's account of the reply; after ``finish``."""
        assert self.native.done is not None
        return self.native.done

    @property
    def message(self) -> ChatMessage:
        """The reply so far."""
        return fold(self._deltas)

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for how the reply ended."""
        if self.done.stop_type not in ("eos", "word"):
            return "length"
        return "tool_calls" if self.message.tool_calls else "stop"


def _check_reasoning_format(body: Mapping[str, Any]) -> None:
    name = body.get("reasoning_format")
    if isinstance(name, str) and name not in get_args(ReasoningFormat):
        raise server_error(f"Unknown reasoning format: {name}")


def _tools(model: Loaded, body: Mapping[str, Any], chat: ChatInput) -> Tools:
    """The tools whose calls are looked for in the reply."""
    template = model.runtime.template
    parallel = template.caps.supports_parallel_tool_calls
    tools = callable_tools(body, chat.tools, parallel_by_default=parallel)
    return tools if template.calls_tools else Tools()


def _params(
    model: Loaded, body: Mapping[str, Any], chat: ChatInput, tools: Tools
) -> CompletionParams:
    """The completion fields, with what the template adds to them."""
    params = model.schema.read(completion_fields(body, has_tools=bool(chat.tools)))
    if not model.runtime.jinja:
        return params
    if tools.declared and not tools.required:
        trigger = {"type": TRIGGER_TOKEN, "value": TOOL_CALL, "token": model.token_id(TOOL_CALL)}
        sampling = replace(params.sampling, grammar_lazy=True)
        params = replace(params, sampling=sampling, grammar_triggers=(trigger,))
    texts = model.runtime.template.preserved_tokens
    preserved = {token for text in texts if (token := model.token_id(text)) is not None}
    unparsed = model.config.chat.skip_parsing
    return replace(
        params,
        chat_format=_UNPARSED if unparsed else _PARSED,
        generation_prompt=chat.prompt.generation_prompt,
        preserved_tokens=tuple(sorted(preserved | set(params.preserved_tokens))),
    )


def _grammar(
    model: Loaded,
    params: CompletionParams,
    tools: Tools,
    schema: object | None,
    chat: ChatInput,
) -> Grammar | None:
    """What binds the reply: its own grammar, calls of tools, or the schema of its answer."""
    if tools.declared and schema is not None:
        raise RequestError("response_format cannot be combined with tools that may be called")
    if tools.declared:
        return Grammar.for_tools(tools.functions, required=tools.required, parallel=tools.parallel)
    if schema is not None:
        return Grammar.from_schema(schema, _thinking(model, chat))
    return own_grammar(model, params)


def _thinking(model: Loaded, chat: ChatInput) -> Thinking:
    if not model.runtime.template.thinks or END_THINK in chat.prompt.reply_prefix:
        return Thinking.NONE
    return Thinking.OPEN if chat.prompt.opens_thinking else Thinking.OPTIONAL
