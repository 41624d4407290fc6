"""The last stage of a chain: one token out of the candidates that are left.

A picker may narrow the candidates first; what it returns is what ``post_sampling_probs`` shows.
Each holds state of one request, so none may be shared.
"""

import math
from typing import Protocol

import numpy as np

from .candidates import Candidates
from .draws import Draws
from .params import SamplingParams

MIROSTAT_M = 100

ADAPTIVE_WIDTH = 0.3
ADAPTIVE_PEAK_LOGIT = 5.0
ADAPTIVE_SHARPNESS = 10.0


class Picker(Protocol):
    def pick(self, candidates: Candidates) -> tuple[Candidates, int]:
        """The candidates as drawn from, and the chosen position in them."""

    def accept(self, token: int) -> None:
        """The token that became part of the output; may be another than the one picked."""


class Dist:
    """Draws by probability."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def pick(self, candidates: Candidates) -> tuple[Candidates, int]:
        return candidates, self._draws.choose(candidates)

    def accept(self, token: int) -> None:
        """Nothing to remember."""


class Mirostat:
    """Keeps the surprise of the output (bits per token) near ``mirostat_tau``: arXiv:2007.14966.

    Version 1 estimates the Zipf exponent of the 100 likeliest tokens and cuts to a top-k,
    version 2 cuts what is more surprising than μ. Then μ -= η·(observed surprise - τ).
    """

    def __init__(self, params: SamplingParams, n_vocab: int, draws: Draws) -> None:
        self._version = params.mirostat
        self._tau, self._eta = params.mirostat_tau, params.mirostat_eta
        self._n_vocab = n_vocab
        self._mu = 2.0 * params.mirostat_tau
        self._draws = draws

    def pick(self, candidates: Candidates) -> tuple[Candidates, int]:
        cut = self._zipf_cut if self._version == 1 else self._surprise_cut
        candidates = cut(candidates)
        position = self._draws.choose(candidates)
        surprise = -math.log2(candidates.probs()[position])
        self._mu -= self._eta * (surprise - self._tau)
        return candidates, position

    def accept(self, token: int) -> None:
        """μ has moved with the draw already."""

    def _surprise_cut(self, candidates: Candidates) -> Candidates:
        with np.errstate(divide="ignore"):
            surprise = -np.log2(candidates.probs())
        expected = candidates.take(np.flatnonzero(surprise <= self._mu))
        return expected.sorted() if len(expected) else candidates.largest(1)

    def _zipf_cut(self, candidates: Candidates) -> Candidates:
        """k = (ε·2^μ / (1 - N^-ε))^(1/s), ε = s - 1; in logarithms, where nothing overflows."""
        top = candidates.largest(MIROSTAT_M).logits.astype(np.float64)
        top = top[np.isfinite(top)]
        if len(top) < 2:
            return candidates.largest(1)
        ranks = np.arange(1, len(top))
        t = np.log((ranks + 1) / ranks)
        s = float(t @ -np.diff(top) / (t @ t))
        log_k = self._mu * math.log(2.0) - _log_zipf_norm(s - 1.0, math.log(self._n_vocab))
        if s <= 0.0:
            return candidates.largest(len(candidates) if log_k >= 0 else 1)
        k = math.exp(min(log_k / s, math.log(len(candidates))))
        return candidates.largest(max(1, int(k + 1e-9)))


def _log_zipf_norm(epsilon: float, log_n: float) -> float:
    """ln((1 - N^-ε) / ε), continued at ε = 0 where it is ln(ln N)."""
    if abs(epsilon) < 1e-9:
        return math.log(log_n)
    return math.log(-math.expm1(-epsilon * log_n) / epsilon)


class AdaptiveP:
    """Steers the probability of the chosen tokens towards ``adaptive_target``.

    Around an adapted target (2·target - weighted mean of what was chosen) logits become
    peak - sharpness·d²/(1 + d), d the distance in widths. A negative target draws by probability.
    """

    def __init__(self, params: SamplingParams, draws: Draws) -> None:
        self._target = params.adaptive_target
        self._decay = params.adaptive_decay
        self._weight = 1.0 / (1.0 - params.adaptive_decay)
        self._sum = params.adaptive_target * self._weight
        self._picked: tuple[int, float] | None = None  # (token, its probability before the change)
        self._draws = draws

    def pick(self, candidates: Candidates) -> tuple[Candidates, int]:
        if self._target < 0.0:
            return candidates, self._draws.choose(candidates)
        probs = candidates.probs()
        target = min(max(2.0 * self._target - self._sum / self._weight, 0.0), 1.0)
        d = np.abs(probs - target) / ADAPTIVE_WIDTH
        logits = ADAPTIVE_PEAK_LOGIT - ADAPTIVE_SHARPNESS * d * d / (1.0 + d)
        logits[np.isneginf(candidates.logits)] = -np.inf
        changed = candidates.with_logits(logits.astype(np.float32))
        position = self._draws.choose(changed)
        self._picked = int(changed.ids[position]), float(probs[position])
        return changed, position

    def accept(self, token: int) -> None:
        if self._picked and self._picked[0] == token:
            self._sum = self._picked[1] + self._decay * self._sum
            self._weight = 1.0 + self._decay * self._weight
        self._picked = None
