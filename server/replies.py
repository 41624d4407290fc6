"""The chat replies that are being made, by id: who may be told to stop thinking."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gguf_hybrid.sampling.reasoning_budget import ReasoningBudget


class Replies:
    """Budgets belong to the engine's thread while a reply runs; here they are only looked up."""

    def __init__(self) -> None:
        self._budgets: dict[str, Sequence[ReasoningBudget]] = {}

    @contextmanager
    def running(self, id: str, budgets: Sequence[ReasoningBudget]) -> Iterator[None]:
        self._budgets[id] = budgets
        try:
            yield
        finally:
            del self._budgets[id]

    def budgets(self, id: str) -> Sequence[ReasoningBudget] | None:
        """The budgets of a running reply; None where no such reply runs."""
        return self._budgets.get(id)
