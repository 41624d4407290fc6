"""Which hidden states of a prompt make its embedding, and the place where they are gathered.

A prompt is read in pieces whose number depends on what else runs, so nothing is summed before the
last one: the vectors of a prompt do not depend on its neighbours, bit for bit.
"""

from enum import StrEnum

import numpy as np

from gguf_hybrid.memory.store import Floats


class Pooling(StrEnum):
    """llama.cpp's pooling types, but for ranking, which needs a head of its own."""

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"
    LAST = "last"

    @property
    def takes_any_length(self) -> bool:
        """Whether a prompt may be longer than a physical batch; llama-server's rule."""
        return self is Pooling.LAST


class Vectors:
    """The hidden states of one prompt, as they come."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._pieces: list[Floats] = []

    def add(self, hidden: Floats) -> None:
        """The next tokens' hidden states, float32 [n, n_embd]; kept only as far as needed."""
        match self._pooling:
            case Pooling.LAST:
                self._pieces = [hidden[-1:].copy()]
            case Pooling.CLS:
                self._pieces = self._pieces or [hidden[:1].copy()]
            case _:
                self._pieces.append(hidden.copy())

    def pooled(self) -> Floats:
        """float32 [1, n_embd], or [n_tokens, n_embd] without pooling."""
        hidden = np.concatenate(self._pieces)
        if self._pooling is Pooling.MEAN:
            hidden = hidden.mean(axis=0, keepdims=True, dtype=np.float64)
        return hidden.astype(np.float32, copy=False)
