"""What a chat body asks for besides its messages: tools, an answer's form, probabilities.

Read before anything is rendered, so that a contradiction is refused first. Which mistake is a 400
and which a 500, and the wording, follow llama-server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gguf_hybrid.errors import RequestError

from .errors import server_error

Json = dict[str, Any]

_TOOL_CHOICES = ("auto", "none", "required")
_DEFAULT_TOP_LOGPROBS = 20
# Fields that mean something else, or nothing, to the completion schema.
_NOT_COMPLETION_FIELDS = ("grammar", "json_schema", "logprobs", "n_probs", "response_fields")


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools a reply may call, as their ``function`` objects, and how many it must."""

    declared: tuple[Json, ...] = ()
    required: bool = False
    parallel: bool = True

    @property
    def functions(self) -> list[Json]:
        return [tool["function"] for tool in self.declared]


def check_before_messages(body: Mapping[str, Any], *, jinja: bool) -> None:
    """Refuse what contradicts itself or the server's flags."""
    if not jinja and isinstance(choice := body.get("tool_choice"), str) and choice != "auto":
        raise server_error("tool_choice param requires --jinja flag")
    if body.get("json_schema") is not None and _own_grammar(body):
        raise server_error("Cannot use both json_schema and grammar")
    answer_schema(body)


def answer_schema(body: Mapping[str, Any]) -> object | None:
    """The JSON schema of the answer (``{}``: any object), from ``response_format`` or its own."""
    schema: object = body.get("json_schema")
    wanted = body.get("response_format")
    wanted = wanted if isinstance(wanted, dict) else {}
    match kind := wanted.get("type") or "":
        case "json_object":
            return wanted["schema"] if wanted.get("schema") is not None else schema or {}
        case "json_schema":
            wrapper = wanted.get("json_schema")
            found = wrapper.get("schema") if isinstance(wrapper, dict) else None
            return {} if found is None else found
        case "" | "text":
            return schema
    message = f'response_format type must be one of "text" or "json_object", but got: {kind}'
    raise RequestError(message)


def callable_tools(
    body: Mapping[str, Any], tools: Sequence[Json], *, parallel_by_default: bool
) -> Tools:
    """The tools of ``tools`` a reply may call: none of them with ``tool_choice`` none.

    A choice in the object form names the one tool that has to be called; llama-server takes every
    object for ``auto``.
    """
    choice = body.get("tool_choice")
    parallel = body.get("parallel_tool_calls")
    parallel = parallel if isinstance(parallel, bool) else parallel_by_default
    named = _named_function(choice)
    if named is not None:
        chosen = tuple(tool for tool in tools if tool["function"]["name"] == named)
        if not chosen:
            raise RequestError(f"Invalid tool_choice: no tool is called {named}")
        return Tools(chosen, True, parallel)
    choice = choice if isinstance(choice, str) else "auto"
    if choice not in _TOOL_CHOICES:
        raise RequestError(f"Invalid tool_choice: {choice}")
    if choice == "none" or not tools:
        return Tools()
    if _own_grammar(body):
        raise RequestError("Cannot use custom grammar constraints with tools.")
    return Tools(tuple(tools), choice == "required", parallel)


def completion_fields(body: Mapping[str, Any], *, has_tools: bool) -> Json:
    """The body as the completion schema reads it: ``logprobs`` is a switch here."""
    fields = {key: value for key, value in body.items() if key not in _NOT_COMPLETION_FIELDS}
    if _own_grammar(body):
        fields["grammar"] = body["grammar"]
    top = body.get("top_logprobs")
    if body.get("logprobs") is True:
        if has_tools and body.get("stream") is True:
            raise RequestError("logprobs is not supported with tools + stream")
        is_count = isinstance(top, int) and not isinstance(top, bool)
        fields["n_probs"] = top if is_count else _DEFAULT_TOP_LOGPROBS
    elif top is not None:
        raise RequestError("top_logprobs requires logprobs to be set to true")
    else:
        fields |= {key: body[key] for key in ("n_probs", "logprobs") if key in body}
    return fields


def _own_grammar(body: Mapping[str, Any]) -> bool:
    return isinstance(grammar := body.get("grammar"), str) and grammar != ""


def _named_function(choice: object) -> str | None:
    """NAME of ``{"type": "function", "function": {"name": NAME}}``, or the short form of it."""
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    return name if isinstance(name, str) else None
