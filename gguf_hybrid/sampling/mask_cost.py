"""What a grammar costs: the time of every mask along one random output."""

import time
from dataclasses import dataclass

import numpy as np

from .constraint import GrammarVocab
from .grammar import Grammar


@dataclass(frozen=True, slots=True)
class MaskCost:
    """Milliseconds to compile the grammar, and for each mask in turn."""

    compile_ms: float
    mask_ms: tuple[float, ...]

    def __str__(self) -> str:
        masks = np.array(self.mask_ms)
        return (
            f"compile {self.compile_ms:.1f} ms, {len(masks)} masks:"
            f" mean {masks.mean():.3f} ms, median {np.median(masks):.3f}, max {masks.max():.3f}"
        )


def measure(grammar: Grammar, vocab: GrammarVocab, n_tokens: int, seed: int = 0) -> MaskCost:
    """Walks up to ``n_tokens`` along the grammar, each allowed token as likely as any other."""
    rng = np.random.default_rng(seed)
    begin = time.perf_counter()
    constraint = grammar.start(vocab)
    compiled = time.perf_counter()
    costs: list[float] = []
    for _ in range(n_tokens):
        before = time.perf_counter()
        mask = constraint.mask()
        costs.append(1e3 * (time.perf_counter() - before))
        allowed = np.arange(vocab.n_vocab) if mask is None else np.flatnonzero(mask)
        token = int(rng.choice(allowed))
        if token in vocab.eog_ids:
            break
        constraint.accept(token)
    return MaskCost(1e3 * (compiled - begin), tuple(costs))
