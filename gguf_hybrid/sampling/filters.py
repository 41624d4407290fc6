"""The stateless samplers: each takes candidates and returns those that stay.

p_i is the softmax over the candidates at hand, H its entropy in nats. A value that switches a
sampler off returns the candidates as they are. Definitions: llama.cpp b11434.
"""

import math

import numpy as np
from numpy.typing import NDArray

from .candidates import FLOAT32_MAX, Candidates, FloatArray

TOP_P_FIRST_LOOK = 256


def top_k(candidates: Candidates, k: int) -> Candidates:
    """The k largest logits. Off for k <= 0."""
    return candidates.largest(k) if k > 0 else candidates


def top_p(candidates: Candidates, p: float, min_keep: int) -> Candidates:
    """The fewest largest p_i whose sum reaches p, at least ``min_keep``. Off for p >= 1."""
    if p >= 1.0:
        return candidates
    total = candidates.weights().sum(dtype=np.float64)
    look = TOP_P_FIRST_LOOK
    while True:
        # The head holds the maximum, so its weights are on the scale of all.
        head = candidates.largest(look)
        sums = np.cumsum(head.weights(), dtype=np.float64) / total
        enough = int(np.searchsorted(sums, p)) + 1
        if enough <= len(head) or len(head) == len(candidates):
            break
        # A whole vocabulary rarely has to be sorted: look further only when the mass asks for it.
        look *= 16
    keep = min(max(enough, min_keep, 1), len(candidates))
    return head.take(slice(keep)) if keep <= len(head) else candidates.largest(keep)


def min_p(candidates: Candidates, p: float, min_keep: int) -> Candidates:
    """Those with p_i >= p · max p, that is logit >= max logit + ln p. Off for p <= 0."""
    if p <= 0.0:
        return candidates
    likely = candidates.logits >= candidates.logits.max() + np.float32(math.log(p))
    n_likely = np.count_nonzero(likely)
    if 0 < n_likely >= min_keep:
        return candidates.take(np.flatnonzero(likely))
    return candidates.largest(max(min_keep, 1))


def typical(candidates: Candidates, p: float, min_keep: int) -> Candidates:
    """Locally typical sampling (arXiv:2202.00666): by rising |-ln p_i - H| until the sum passes p.

    Off for p >= 1.
    """
    if p >= 1.0:
        return candidates
    candidates = candidates.sorted()
    probs = candidates.probs()
    with np.errstate(divide="ignore"):
        surprise = -np.log(probs)
    order = np.argsort(np.abs(surprise - _entropy(probs)), kind="stable")
    passed = int(np.searchsorted(np.cumsum(probs[order]), p, side="right")) + 1
    return candidates.take(order[: max(passed, min_keep, 1)], is_sorted=False)


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Masks logits below max - n·σ, σ the population deviation of the finite. Off for n <= 0."""
    if n <= 0.0 or len(candidates) <= 1:
        return candidates
    logits = candidates.logits
    sigma = logits[np.isfinite(logits)].std(dtype=np.float64)
    masked = np.where(logits < logits.max() - n * sigma, np.float32(-np.inf), logits)
    return candidates.with_logits(masked, is_sorted=candidates.is_sorted)


def temperature(candidates: Candidates, t: float) -> Candidates:
    """logit / t; for t <= 0 all but the first maximum are masked."""
    if t <= 0.0:
        masked = np.full_like(candidates.logits, -np.inf)
        best = candidates.logits.argmax()
        masked[best] = candidates.logits[best]
        return candidates.with_logits(masked)
    scaled = _divided(candidates.logits, t)
    return candidates.with_logits(scaled, is_sorted=candidates.is_sorted)


def _divided(logits: FloatArray, t: float) -> FloatArray:
    """logits / t. A quotient past float32 is shifted down, which a softmax does not see."""
    scaled = logits.astype(np.float64) / t
    peak = scaled.max()
    if abs(peak) > FLOAT32_MAX:
        scaled -= peak
    with np.errstate(over="ignore"):
        return scaled.astype(np.float32)


def dynamic_temperature(
    candidates: Candidates, t: float, spread: float, exponent: float
) -> Candidates:
    """Entropy-based temperature: T = lo + (hi - lo)·(H / ln n)^exponent.

    lo = max(0, t - spread), hi = t + spread, n the number of candidates. Plain temperature for
    spread <= 0; a single candidate is left as it is.
    """
    if spread <= 0.0:
        return temperature(candidates, t)
    if len(candidates) <= 1:
        return candidates
    candidates = candidates.sorted()
    low, high = max(0.0, t - spread), t + spread
    evenness = np.float64(_entropy(candidates.probs()) / math.log(len(candidates)))
    with np.errstate(all="ignore"):
        dynamic = low + (high - low) * np.power(evenness, exponent)
    return temperature(candidates, min(float(dynamic), FLOAT32_MAX))


def exclude_top_choices(candidates: Candidates, threshold: float, min_keep: int) -> Candidates:
    """XTC once its coin has fallen: of those with p_i >= threshold only the least likely stays."""
    candidates = candidates.sorted()
    last = int(np.count_nonzero(candidates.probs() >= threshold)) - 1
    if last <= 0 or len(candidates) - last < min_keep:
        return candidates
    return candidates.take(slice(last, None))


def _entropy(probs: NDArray[np.float64]) -> float:
    positive = probs[probs > 0]
    return float(-(positive * np.log(positive)).sum())
