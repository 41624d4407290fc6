"""How long a reply may think: the request's limit, and the budgets made of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gguf_hybrid.errors import RequestError
from gguf_hybrid.sampling.reasoning_budget import ReasoningBudget, ReasoningTags
from gguf_hybrid.text.tags import END_THINK, THINK, TOOL_CALL

from .config import ChatConfig
from .context import Loaded


@dataclass(frozen=True, slots=True)
class ThinkingLimit:
    """How many tokens thinking may take (-1: any number) and what is said when they are used."""

    n_tokens: int
    message: str
    controlled: bool
    """Whether another request may end the thinking (``reasoning_control``)."""

    @classmethod
    def of(cls, body: Mapping[str, Any], config: ChatConfig) -> "ThinkingLimit":
        """From ``reasoning_budget_tokens``, or as Anthropic's clients call it."""
        n_tokens = -1
        for name in ("thinking_budget_tokens", "reasoning_budget_tokens"):
            value = body.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                if value < -1:
                    raise RequestError(f"Field '{name}': Value must be >= -1, but got {value}")
                n_tokens = value
        message = body.get("reasoning_budget_message")
        return cls(
            config.reasoning_budget if n_tokens == -1 else n_tokens,
            message if isinstance(message, str) else config.reasoning_budget_message,
            body.get("reasoning_control") is True,
        )


class Budgets:
    """Makes the budget of each choice of a chat, and keeps those that may be ended from outside."""

    def __init__(self, model: Loaded, limit: ThinkingLimit, reply_prefix: str) -> None:
        self.controlled: list[ReasoningBudget] = []
        self._model = model
        self._limit = limit
        self._reply_prefix = reply_prefix

    def new(self) -> ReasoningBudget | None:
        """None where nothing limits the thinking, or the template has none."""
        limit, model = self._limit, self._model
        is_needed = limit.n_tokens >= 0 or limit.controlled
        if not is_needed or not model.runtime.template.thinks:
            return None
        n_tokens = limit.n_tokens if limit.n_tokens >= 0 else None
        budget = ReasoningBudget(self._tags(), n_tokens, model.runtime.sampling_vocab.token_bytes)
        budget.accept_prompt(self._encode(self._reply_prefix))
        if limit.controlled:
            self.controlled.append(budget)
        return budget

    def _tags(self) -> ReasoningTags:
        return ReasoningTags(
            start=self._encode(THINK),
            ends=(self._encode(END_THINK), self._encode(TOOL_CALL)),
            forced=self._encode(f"{self._limit.message}\n{END_THINK}"),
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._model.tokenizer.encode(text))
