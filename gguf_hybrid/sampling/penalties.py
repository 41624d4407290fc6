"""Logits moved for single tokens: the request's bias, and penalties for what was said before."""

from collections import Counter, deque
from collections.abc import Iterable

import numpy as np

from .candidates import FLOAT32_MAX, Candidates
from .params import SamplingParams


class LogitBias:
    """logit + bias; several biases of one token add up."""

    def __init__(self, biases: Iterable[tuple[int, float]]) -> None:
        total: dict[int, float] = {}
        for token, bias in biases:
            total[token] = total.get(token, 0.0) + bias
        self._tokens = np.array(list(total), dtype=np.int64)
        self._biases = np.minimum(np.array(list(total.values())), FLOAT32_MAX)

    def apply(self, candidates: Candidates) -> Candidates:
        positions, found = candidates.locate(self._tokens)
        return candidates.replaced(positions, candidates.logits[positions] + self._biases[found])


class Penalties:
    """Repeat, frequency and presence penalty over the last ``repeat_last_n`` tokens.

    For a token seen c > 0 times: logit·repeat where logit <= 0, else logit / repeat; then minus
    (c·frequency + presence). The window holds prompt and output.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._repeat = params.repeat_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._window: deque[int] = deque(maxlen=params.repeat_last_n)
        self._counts: Counter[int] = Counter()

    @staticmethod
    def is_active(params: SamplingParams) -> bool:
        neutral = (1.0, 0.0, 0.0)
        asked = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
        return params.repeat_last_n > 0 and asked != neutral

    def accept(self, token: int) -> None:
        if len(self._window) == self._window.maxlen:
            self._forget(self._window[0])
        self._window.append(token)
        self._counts[token] += 1

    def before_the_last(self, n_more: int) -> list[int]:
        """The window once ``n_more`` tokens have been accepted, without those and, for 0, without
        the latest; ``n_more`` is 0 or 1."""
        said = list(self._window)
        if not n_more:
            return said[:-1]
        return said[1:] if len(said) == self._window.maxlen else said

    def _forget(self, token: int) -> None:
        self._counts[token] -= 1
        if not self._counts[token]:
            del self._counts[token]

    def apply(self, candidates: Candidates) -> Candidates:
        if not self._counts:
            return candidates
        positions, found = candidates.locate(np.array(list(self._counts), dtype=np.int64))
        counts = np.array(list(self._counts.values()), dtype=np.float64)[found]
        said = candidates.logits[positions].astype(np.float64)
        said = np.where(said <= 0, said * self._repeat, said / self._repeat)
        said -= counts * self._frequency + self._presence
        return candidates.replaced(positions, said)
