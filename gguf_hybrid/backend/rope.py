"""Rotary position angles: the numbers behind partial NEOX rope, with linear and YaRN scaling.

Angles are formed in float64 and rounded once, so every backend rotates by the same cosines. Text
tokens have the same position on all three M-RoPE axes, which makes interleaved M-RoPE plain partial
rope.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gguf_hybrid.config import ModelConfig

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rope:
    """``inv_freq`` float64 [n_rot / 2], radians per position; ``magnitude`` scales cos and sin."""

    inv_freq: npt.NDArray[np.float64]
    magnitude: float

    def tables(self, positions: npt.NDArray[np.int32]) -> tuple[Floats, Floats]:
        """cos and sin, each float32 [n_tokens, n_rot / 2]."""
        angles = positions.astype(np.float64)[:, None] * self.inv_freq
        cos, sin = np.cos(angles) * self.magnitude, np.sin(angles) * self.magnitude
        return cos.astype(np.float32), sin.astype(np.float32)


def rope_of(config: ModelConfig) -> Rope:
    """The rope of a model. YaRN as in its paper (arXiv 2309.00071, section 3): low frequencies are
    interpolated by ``1 / factor``, high ones kept, with a linear ramp between ``beta_fast`` and
    ``beta_slow`` rotations over the original context; the magnitude grows by ``0.1 ln(factor)``."""
    n_rot, base = config.n_rot, config.rope_freq_base
    inv_freq = base ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    scaling = config.rope_scaling
    if scaling.ext_factor == 0:
        return Rope(inv_freq * scaling.freq_scale, scaling.magnitude)
    low, high = _ramp_bounds(scaling.beta_fast, scaling.beta_slow, config)
    ramp = np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0.0, 1.0)
    kept = (1.0 - ramp) * scaling.ext_factor
    mixed = inv_freq * scaling.freq_scale * (1.0 - kept) + inv_freq * kept
    return Rope(mixed, scaling.magnitude)


def _ramp_bounds(beta_fast: float, beta_slow: float, config: ModelConfig) -> tuple[float, float]:
    """Pair indices at which a pair turns ``beta`` times over the original context."""

    def pair(beta: float) -> float:
        turns = config.rope_scaling.original_context_length / (beta * 2 * math.pi)
        return config.n_rot * math.log(turns) / (2 * math.log(config.rope_freq_base))

    low, high = math.floor(pair(beta_fast)), math.ceil(pair(beta_slow))
    return max(0.0, low), min(config.n_rot - 1.0, high)
