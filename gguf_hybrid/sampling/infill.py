"""The infill sampler: prefers to end, and to keep only what the candidates agree on.

For fill-in-the-middle, where a confident short answer beats a plausible long one.
"""

from collections.abc import Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from .candidates import Candidates
from .vocab import SamplingVocab

LEAST_PROBABILITY = 0.2

# The merge looks at all pairs. A token further down could reach 0.2 only as the sum of hundreds.
MAX_MERGED = 128


def infill(candidates: Candidates, vocab: SamplingVocab) -> Candidates:
    """The end tokens alone if 3·P(end)·n > P(text); else the clearly likely tokens and the ends.

    Tokens of which one is a prefix of the other count as one, under the likelier of the two.
    """
    candidates = candidates.sorted()
    probs = candidates.probs()
    is_end = np.isin(candidates.ids, list(vocab.eog_ids))
    p_end = float(probs[is_end].sum())
    if 3 * p_end * len(candidates) > 1.0 - p_end:
        return candidates.take(np.flatnonzero(is_end))
    pieces = [vocab.token_bytes[i] for i in candidates.ids[:MAX_MERGED]]
    merged = merge_prefixes(probs, pieces)
    keep = is_end | (merged >= LEAST_PROBABILITY)
    n_text = np.count_nonzero(keep & ~is_end)
    if n_text == 0:
        return _end_of_turn(vocab, candidates)
    share = merged / merged[keep].sum()
    return candidates.take(np.flatnonzero(keep & (is_end | (share >= 1.0 / (n_text + 1)))))


def merge_prefixes(probs: NDArray[np.float64], pieces: Sequence[bytes]) -> NDArray[np.float64]:
    """``probs`` after each piece and a piece it begins gave their mass to the likelier of them."""
    merged = probs.copy()
    gone = set[int]()
    for short, long in permutations(range(len(pieces)), 2):
        if short in gone or long in gone or not pieces[short]:
            continue
        if pieces[long].startswith(pieces[short]):
            kept, lost = (long, short) if merged[long] > merged[short] else (short, long)
            merged[kept] += merged[lost]
            merged[lost] = 0.0
            gone.add(lost)
    return merged


def _end_of_turn(vocab: SamplingVocab, candidates: Candidates) -> Candidates:
    if vocab.eot_id is None:
        return candidates.largest(1)
    return Candidates(np.array([vocab.eot_id]), np.zeros(1, dtype=np.float32), is_sorted=True)
