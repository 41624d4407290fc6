"""Sampler and reader of fake requests: greedy, and one word per token."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gguf_hybrid.errors import StepError
from gguf_hybrid.sampling.chain import Sampled


class Greedy:
    """Takes the largest logit and remembers every row it saw."""

    constraint: object = None

    def __init__(self) -> None:
        self.prompt: list[int] = []
        self.accepted: list[int] = []
        self.rows: list[np.ndarray] = []

    def accept_prompt(self, tokens: Iterable[int]) -> None:
        self.prompt = list(tokens)

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def sample(self, logits: np.ndarray) -> Sampled:
        if not np.isfinite(logits).all():
            raise StepError("the model produced logits that are not finite")
        self.rows.append(logits.copy())
        return Sampled(int(logits.argmax()))


@dataclass(frozen=True)
class Word:
    text: str
    stop_word: str | None = None
    incomplete: bool = False
    under_indented: bool = False


class Words:
    """Token 12 reads "12 "; ``stop`` is a token after which the text ends."""

    def __init__(self, stop: int | None = None) -> None:
        self.text = ""
        self.has_new_line = False
        self.stop = stop

    def push(self, token_id: int, is_eog: bool) -> Word:
        if is_eog:
            return Word("")
        if token_id == self.stop:
            return Word("", stop_word=str(token_id))
        self.text += f"{token_id} "
        return Word(f"{token_id} ")

    def finish(self) -> Word:
        return Word("")
