"""What a device needs to choose a token as a request's sampler would, for the common chain.

The chain is bias, penalties, top-k, top-p, min-p, temperature, one draw; everything else stays with
the sampler on the host. The random number is given in, and candidates are in the same order, so
host and device choose alike from the same seed, except where float32 sums (the host's are
float64) put the number on the other side of a boundary: about one draw in a million.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .candidates import FLOAT32_MAX
from .params import SamplingParams
from .penalties import Penalties

MAX_TOP_K = 128
MAX_BIASES = 16
MAX_WINDOW = 256

_COMMON = ("penalties", "top_k", "top_p", "min_p", "temperature")
_NEUTRAL = (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class CommonChain:
    """The settings of a chain that a device has kernels for.

    penalties  repeat, frequency, presence
    n_window   tokens they look back, the latest included; 0 without penalties
    top_p      1 or more: off
    min_logit  ln min_p, -inf: off
    """

    top_k: int
    top_p: float
    min_logit: float
    temperature: float
    penalties: tuple[float, float, float]
    n_window: int
    biases: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One token to choose: ``window`` are the tokens before the row's own that penalties see,
    ``number`` is uniform in [0, 1)."""

    chain: CommonChain
    window: Sequence[int]
    number: float


def common_chain(params: SamplingParams, biases: Sequence[tuple[int, float]]) -> CommonChain | None:
    """The chain of resolved ``params``, None where only the host can follow it."""
    p = params
    off = (
        p.mirostat == 0
        and p.dry_multiplier == 0
        and p.top_n_sigma <= 0
        and p.typical_p >= 1
        and p.xtc_probability <= 0
        and p.dynatemp_range <= 0
        and p.n_probs <= 0
        and p.min_keep <= 1
    )
    others = [s for s in p.samplers if s in _COMMON]
    strange = {"infill", "adaptive_p"}.intersection(p.samplers)
    window = p.repeat_last_n if Penalties.is_active(p) else 0
    greedy = p.temperature <= 0
    k = 1 if greedy else p.top_k
    totals = _totals(biases)
    if not off or strange or others != list(_COMMON) or not 0 < k <= MAX_TOP_K:
        return None
    if window > MAX_WINDOW or len(totals) > MAX_BIASES or not all(map(_is_exact, totals)):
        return None
    return CommonChain(
        top_k=k,
        top_p=1.0 if greedy else p.top_p,
        min_logit=-math.inf if greedy or p.min_p <= 0 else math.log(p.min_p),
        temperature=1.0 if greedy else p.temperature,
        penalties=(p.repeat_penalty, p.frequency_penalty, p.presence_penalty)
        if window
        else _NEUTRAL,
        n_window=window,
        biases=totals,
    )


def _totals(biases: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    total: dict[int, float] = {}
    for token, bias in biases:
        total[token] = min(total.get(token, 0.0) + bias, FLOAT32_MAX)
    return tuple(total.items())


def _is_exact(bias: tuple[int, float]) -> bool:
    """A device adds in float32."""
    return float(np.float32(bias[1])) == bias[1]
