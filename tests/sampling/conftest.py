"""A small byte-level vocabulary for grammars: every byte, some longer pieces, control tokens."""

from dataclasses import dataclass

import numpy as np
import pytest

from gguf_hybrid.sampling.chain import Sampler
from gguf_hybrid.sampling.constraint import GrammarVocab
from gguf_hybrid.sampling.grammar import Grammar
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.sampling.vocab import SamplingVocab

PIECES = [
    *('{"', '":', '",', '"}', '"]', '["', 'ab"', ": ", "  ", " a", "\n\n"),
    *("</think>", "<think>", "<tool_call>", "</tool_call>", "<function=", "\n<function="),
    *("<parameter=", "</parameter>", ">\n", "\n</"),
    *("true", "false", "null", "12", "00", "-1", ".5", "e1"),
    *("Paris", "get_", "weather", "aa", "ab", "ba", "yes", "no", "é", "你好"),
]


@dataclass(frozen=True)
class Words:
    """The vocabulary in both forms, with what tests do with it."""

    token_bytes: list[bytes]
    grammar: GrammarVocab
    sampling: SamplingVocab
    eog: int
    control: int

    def encode(self, text):
        """Longest pieces first, as a list of ids."""
        rest, ids = text.encode(), []
        while rest:
            best = max(
                (i for i in range(len(self.token_bytes) - 2) if self._begins(rest, i)),
                key=lambda i: len(self.token_bytes[i]),
            )
            ids.append(best)
            rest = rest[len(self.token_bytes[best]) :]
        return ids

    def _begins(self, rest, i):
        return rest.startswith(self.token_bytes[i])

    def decode(self, ids):
        return b"".join(self.token_bytes[i] for i in ids if i < self.eog)

    def accepts(self, grammar: Grammar, text: str, *, spelled: bool = False) -> bool:
        """Whether ``text`` is a whole output of the grammar, by pieces or byte by byte."""
        constraint = grammar.start(self.grammar)
        ids = list(text.encode()) if spelled else self.encode(text)
        for token in ids:
            mask = constraint.mask()
            if mask is not None and not mask[token]:
                return False
            constraint.accept(token)
        return constraint.is_complete

    def walk(self, grammar: Grammar, seed: int, limit: int = 400) -> tuple[str, bool]:
        """Text sampled from random logits, and whether it ended by itself."""
        rng = np.random.default_rng(seed)
        params = SamplingParams(seed=seed, top_k=0, top_p=1.0, min_p=0.0, temperature=1.0)
        sampler = Sampler(params, self.sampling, grammar.start(self.grammar))
        ids = []
        for _ in range(limit):
            logits = rng.normal(scale=2.0, size=len(self.token_bytes)).astype(np.float32)
            ids.append(sampler.sample(logits).id)
            sampler.accept(ids[-1])
            if ids[-1] == self.eog:
                return self.decode(ids).decode(), True
        return self.decode(ids).decode(errors="ignore"), False


@pytest.fixture(scope="session")
def words() -> Words:
    pieces = [bytes([i]) for i in range(256)] + [text.encode() for text in PIECES]
    eog, control = len(pieces), len(pieces) + 1
    pieces += [b"<|im_end|>", b"<|im_start|>"]
    return Words(
        token_bytes=pieces,
        grammar=GrammarVocab(pieces, special_ids=[control], eog_ids=[eog]),
        sampling=SamplingVocab(pieces, [eog], tokenize=lambda text: list(text.encode())),
        eog=eog,
        control=control,
    )
