"""Tokens chosen on the device: the last two kernels of a decode step, and what they are told.

A third kernel, ahead of the step, fills in tokens that the step before has chosen. All inputs lie
in one pinned array, as those of the rest of the step (``cuda_decode``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gguf_hybrid.sampling.device import MAX_BIASES, MAX_TOP_K, MAX_WINDOW, Choice

from .base import GIVEN
from .cuda_kernels import Kernels, Scratch

SLICES = 32
"""Parts of a row's logits; the lanes that merge them are as many."""
LANES = 512
COUNTS = 3 + MAX_BIASES + MAX_WINDOW
KNOBS = 7 + MAX_BIASES


@dataclass(frozen=True, slots=True)
class Told:
    """What a bucket of n rows is told, views into ``words``: int32 sources [n] and counts
    [n, COUNTS], float32 knobs [n, KNOBS], as ``sample_slices.metal`` describes them."""

    words: npt.NDArray[np.int32]
    sources: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    knobs: npt.NDArray[np.float32]

    @classmethod
    def over(cls, words: npt.NDArray[np.int32], n: int) -> "Told":
        """``words`` has ``n_words(n)`` elements."""
        sources, counts, knobs = np.split(words, [n, n + n * COUNTS])
        return cls(
            words, sources, counts.reshape(n, COUNTS), knobs.view(np.float32).reshape(n, KNOBS)
        )

    def fill(self, choices: Sequence[Choice | None], sources: Sequence[int]) -> None:
        """Rows without a choice, and those behind the last, choose something nobody looks at."""
        n = len(choices)
        self.sources[:n], self.sources[n:] = sources, GIVEN
        self.counts[:, 0], self.counts[:, 1:3] = 1, 0
        self.knobs[:, :7] = (1, 0, 0, 1, -np.inf, 1, 0)
        for choice, counts, knobs in zip(choices, self.counts, self.knobs, strict=False):
            if choice is not None:
                _tell(choice, counts, knobs)


def n_words(n: int) -> int:
    """Elements of ``Told.words`` for n rows."""
    return n * (1 + COUNTS + KNOBS)


def _tell(choice: Choice, counts: npt.NDArray[np.int32], knobs: npt.NDArray[np.float32]) -> None:
    chain, window = choice.chain, choice.window
    n_biases = len(chain.biases)
    counts[0], counts[1] = chain.top_k, n_biases
    if chain.n_window:
        counts[2] = len(window) + 1
        first = 3 + MAX_BIASES
        counts[first : first + len(window)] = window
    knobs[:7] = (*chain.penalties, chain.top_p, chain.min_logit, chain.temperature, choice.number)
    if n_biases:
        counts[3 : 3 + n_biases] = [token for token, _ in chain.biases]
        knobs[7 : 7 + n_biases] = [bias for _, bias in chain.biases]


class Sampling:
    """Launches over buffers for ``max_rows`` rows. ``picks`` is the address of the tokens chosen
    last, int32 [max_rows], -1 where the logits were not finite."""

    def __init__(self, kernels: Kernels, scratch: Scratch, n_vocab: int, max_rows: int) -> None:
        self._kernels, self._n_vocab = kernels, n_vocab
        candidates = 4 * max_rows * MAX_TOP_K * SLICES
        self._values = scratch("candidate.values", candidates)
        self._ids = scratch("candidate.ids", candidates)
        self.picks = scratch("picks", 4 * max_rows)

    def take_tokens(self, told: int, tokens: int, n: int) -> None:
        """``told`` is the address of ``Told.words`` on the device."""
        run = self._kernels("take_tokens")
        run.launch((1, 1, 1), 64, told, self.picks, tokens, n)

    def choose(self, told: int, tokens: int, logits: int, n: int) -> None:
        """Tokens for the logits [n, n_vocab]; ``tokens`` are those the rows have absorbed."""
        counts = told + 4 * n
        knobs = counts + 4 * n * COUNTS
        sizes = {"SLICES": SLICES, "K_MAX": MAX_TOP_K, "BIASES": MAX_BIASES, "WINDOW": MAX_WINDOW}
        slices = self._kernels("sample_slices", V=self._n_vocab, LANES=LANES, **sizes)
        slices.launch((SLICES, n, 1), LANES, logits, tokens, counts, knobs, self._values, self._ids)
        merge = self._kernels("sample_merge", **sizes)
        merge.launch((n, 1, 1), 32, self._values, self._ids, counts, knobs, self.picks)
