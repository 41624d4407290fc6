"""Token probabilities as a response reports them (``n_probs``)."""

from dataclasses import dataclass

import numpy as np

from .candidates import FLOAT32_MAX, Candidates, FloatArray, largest_positions


@dataclass(frozen=True, slots=True)
class TokenProbs:
    """Of the chosen token, and of the likeliest ones as (id, value), falling.

    Values are log-probabilities of the model, or, when ``post_sampling``, probabilities (0 … 1)
    of the distribution the token was drawn from.
    """

    value: float
    top: tuple[tuple[int, float], ...]
    post_sampling: bool


def model_probs(logits: FloatArray, token: int, n: int) -> TokenProbs:
    """log softmax of raw logits (no bias, penalty, temperature); ln 0 is float32's lowest value."""
    peak = logits.max()
    log_total = float(np.log(np.exp(logits - peak).sum(dtype=np.float64))) + float(peak)
    top = largest_positions(logits, min(n, len(logits)))
    return TokenProbs(
        value=_finite(float(logits[token]) - log_total),
        top=tuple((int(i), _finite(float(logits[i]) - log_total)) for i in top),
        post_sampling=False,
    )


def drawn_probs(candidates: Candidates, position: int, n: int) -> TokenProbs:
    """Probabilities after the whole chain; candidates that had none are left out."""
    probs = candidates.probs()
    order = np.argsort(-probs, kind="stable")[:n]
    return TokenProbs(
        value=float(probs[position]),
        top=tuple((int(candidates.ids[i]), float(probs[i])) for i in order if probs[i] > 0),
        post_sampling=True,
    )


def _finite(logprob: float) -> float:
    return max(logprob, -FLOAT32_MAX)
