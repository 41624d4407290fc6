"""The tokens still in play while a chain of samplers runs, with their logits.

Values are immutable: a sampler returns new candidates, so the logits a step handed in are never
written. Ties keep their order (lowest id first), as in a stable sort.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IndexArray = NDArray[np.int64]

FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Candidates:
    """``ids`` int64 [n] and ``logits`` float32 [n], -inf for a masked one; never empty.

    ``is_sorted``: logits fall. ``is_full``: ids are 0 … n_vocab - 1 in order, which makes looking
    a token up free.
    """

    ids: IndexArray
    logits: FloatArray
    is_sorted: bool = False
    is_full: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, which: IndexArray | slice, *, is_sorted: bool | None = None) -> "Candidates":
        """The candidates at ``which`` positions, in that order."""
        keeps_order = self.is_sorted if is_sorted is None else is_sorted
        return Candidates(self.ids[which], self.logits[which], keeps_order)

    def with_logits(self, logits: FloatArray, *, is_sorted: bool = False) -> "Candidates":
        return Candidates(self.ids, logits, is_sorted, self.is_full)

    def replaced(self, positions: IndexArray, values: NDArray[np.float64]) -> "Candidates":
        """With other logits at ``positions``: held at float32's largest, only -inf stays -inf."""
        held = np.where(np.isneginf(values), values, np.clip(values, -FLOAT32_MAX, FLOAT32_MAX))
        logits = self.logits.copy()
        logits[positions] = held
        return self.with_logits(logits)

    def sorted(self) -> "Candidates":
        """By falling logit."""
        if self.is_sorted:
            return self
        return self.take(np.argsort(-self.logits, kind="stable"), is_sorted=True)

    def largest(self, k: int) -> "Candidates":
        """The k largest by falling logit (all, sorted, when k is larger)."""
        if self.is_sorted or k >= len(self):
            return self.sorted().take(slice(k))
        return self.take(largest_positions(self.logits, k), is_sorted=True)

    def weights(self) -> FloatArray:
        """exp(logit - max): the softmax before its division. Float32, at least one is 1."""
        weights: FloatArray = np.exp(self.logits - self.logits.max())
        return weights

    def probs(self) -> NDArray[np.float64]:
        """Softmax of the logits, divided in float64."""
        probs: NDArray[np.float64] = self.weights().astype(np.float64)
        probs /= probs.sum()
        return probs

    def locate(self, tokens: IndexArray) -> tuple[IndexArray, NDArray[np.bool_]]:
        """Positions of ``tokens`` (distinct ids) that are candidates, and which of them are."""
        if self.is_full:
            return tokens, np.ones(len(tokens), dtype=bool)
        order = np.argsort(self.ids, kind="stable")
        slots = np.searchsorted(self.ids, tokens, sorter=order)
        positions = order[np.minimum(slots, len(order) - 1)]
        found = self.ids[positions] == tokens
        return positions[found], found


def largest_positions(logits: FloatArray, k: int) -> IndexArray:
    """Positions of the k largest by falling value, equal values by rising position.

    Needs 0 < k <= n. Never sorts a vocabulary of 248k for 40 candidates.
    """
    if k == 1:
        return np.array([logits.argmax()])
    pool = np.flatnonzero(logits >= _lower_bound(logits, k))
    return pool[np.argsort(-logits[pool], kind="stable")[:k]]


def _lower_bound(logits: FloatArray, k: int) -> float:
    """A value that at least k logits reach, and not many more: the k-th largest group maximum."""
    group_size = min(64, len(logits) // (4 * k))
    if group_size < 2:
        return -np.inf
    n_groups = len(logits) // group_size
    maxima = logits[: n_groups * group_size].reshape(group_size, n_groups).max(axis=0)
    return float(np.partition(maxima, n_groups - k)[n_groups - k])
