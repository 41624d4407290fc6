"""Random numbers of one request: mt19937, drawn as libstdc++ draws from std::mt19937.

So a seed gives the choices llama-server built with GCC gives for the same distribution.
"""

import secrets
from collections import deque

import numpy as np

from .candidates import Candidates
from .params import RANDOM_SEED


def fresh_seed(seed: int) -> int:
    """``seed``, or a random one for the value that asks for it."""
    return secrets.randbits(32) if seed == RANDOM_SEED else seed


class Draws:
    """A stream of uniform numbers that depends on its seed alone."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.RandomState(seed)
        self._drawn: deque[float] = deque()

    def _word(self) -> int:
        return int(self._generator.randint(0, 2**32, dtype=np.uint32))

    def uniform(self) -> float:
        """In [0, 1), from two words, the first the low one."""
        return self._drawn.popleft() if self._drawn else self._fresh()

    def ahead(self, n: int) -> float:
        """What ``uniform`` will give after ``n`` more calls of it."""
        while len(self._drawn) <= n:
            self._drawn.append(self._fresh())
        return self._drawn[n]

    def _fresh(self) -> float:
        low, high = self._word(), self._word()
        return min((high * 2.0**32 + low) / 2.0**64, 1.0 - 2.0**-53)

    def uniform32(self) -> float:
        """In [0, 1) with float32 precision, from one word."""
        return min(float(np.float32(self._word())) / 2.0**32, 1.0 - 2.0**-24)

    def choose(self, candidates: Candidates) -> int:
        """A position, each with its softmax probability: one number is drawn whatever the size."""
        u = self.uniform()
        sums = np.cumsum(candidates.weights(), dtype=np.float64)
        position = int(np.searchsorted(sums, u * sums[-1], side="right"))
        # Rounding may put the target on the total: then the last one with any weight is meant.
        return min(position, int(np.searchsorted(sums, sums[-1])))
