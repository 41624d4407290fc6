"""DRY: a token that would go on repeating an earlier passage loses logit, more with its length.

Works on token ids. Sequence breakers (line ends, quotes, …) end the passage that counts.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from .candidates import FLOAT32_MAX, Candidates
from .params import SamplingParams
from .vocab import MAX_TAIL_TOKENS, SamplingVocab, Tails


class Dry:
    """logit - multiplier · base^(L - allowed_length), L the longest repeat a token would extend."""

    def __init__(self, params: SamplingParams, vocab: SamplingVocab) -> None:
        self._multiplier = params.dry_multiplier
        self._base = params.dry_base
        self._allowed = params.dry_allowed_length
        self._window: deque[int] = deque(maxlen=params.dry_penalty_last_n)
        self._breakers = merged_breakers(vocab, params.dry_sequence_breakers)

    @staticmethod
    def is_active(params: SamplingParams) -> bool:
        return params.dry_multiplier != 0.0 and params.dry_penalty_last_n > 0

    def accept(self, token: int) -> None:
        self._window.append(token)

    def apply(self, candidates: Candidates) -> Candidates:
        repeats = longest_repeats(list(self._window)[::-1], self._allowed, self._breakers)
        penalised = {t: n for t, n in repeats.items() if () not in self._breakers.get(t, ())}
        if not penalised:
            return candidates
        positions, found = candidates.locate(np.array(list(penalised), dtype=np.int64))
        penalty = np.array([self._penalty(n) for n in penalised.values()])[found]
        return candidates.replaced(positions, candidates.logits[positions] - penalty)

    def _penalty(self, repeat: int) -> float:
        exponent: float = repeat - self._allowed
        if self._base > 1.000001:
            # base^exponent stays a float32.
            exponent = min(exponent, int(math.log(FLOAT32_MAX) / math.log(self._base)))
        return float(self._multiplier * self._base**exponent)


def merged_breakers(vocab: SamplingVocab, breakers: Sequence[str]) -> dict[int, Tails]:
    """Head token → tails over all breaker strings."""
    merged: dict[int, Tails] = {}
    for breaker in breakers:
        for head, tails in vocab.breaker_heads(breaker).items():
            merged[head] = merged.get(head, frozenset()) | tails
    return merged


def longest_repeats(
    newest_first: Sequence[int], allowed: int, breakers: Mapping[int, Tails]
) -> dict[int, int]:
    """Token → length of the longest passage before the end of the text that it would continue.

    Only lengths of at least ``allowed``; lengths are cut at the nearest breaker.
    """
    n = len(newest_first)
    if n <= allowed:
        return {}
    limit = _distance_to_breaker(newest_first, breakers)
    if limit < allowed:
        return {}
    repeats: dict[int, int] = {}
    for k, length in enumerate(_prefix_matches(newest_first)):
        length = min(length, limit)
        if k > 0 and length >= allowed:
            # What came after the earlier passage is the token that would repeat it further.
            token = newest_first[k - 1]
            repeats[token] = max(repeats.get(token, 0), length)
    return repeats


def _distance_to_breaker(newest_first: Sequence[int], breakers: Mapping[int, Tails]) -> int:
    """Tokens since the newest breaker; all of them when there is none."""
    for i, head in enumerate(newest_first):
        if head not in breakers:
            continue
        after = tuple(newest_first[max(i - MAX_TAIL_TOKENS, 0) : i][::-1])
        matching = [len(tail) for tail in breakers[head] if tail == after[: len(tail)]]
        if matching:
            return i - max(matching)
    return len(newest_first)


def _prefix_matches(items: Sequence[int]) -> list[int]:
    """Z-function: entry k is how far ``items[k:]`` agrees with ``items``. Linear in the length."""
    n = len(items)
    z = [0] * n
    left = right = 0  # the match [left, right) that reaches furthest
    for k in range(1, n):
        length = min(right - k, z[k - left]) if k < right else 0
        while k + length < n and items[length] == items[k + length]:
            length += 1
        z[k] = length
        if k + length > right:
            left, right = k, k + length
    return z
