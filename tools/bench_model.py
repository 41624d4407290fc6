"""The bare model under test: passes over a model and its memory, without engine, sampler or text.

What a pass costs here is the floor of what it can cost in the server.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gguf_hybrid.backend.select import create_backend
from gguf_hybrid.memory.hybrid import HybridMemory, MemorySizes
from gguf_hybrid.memory.kv import n_blocks_for
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.runtime import OpenModel
from gguf_hybrid.runtime_config import RuntimeConfig
from gguf_hybrid.step import Ids, Step

N_WARM_UP = 16


@dataclass(frozen=True, slots=True)
class Point:
    """``pl`` sequences read ``pp`` tokens each, then ``tg`` passes of a token each; seconds."""

    pp: int
    tg: int
    pl: int
    t_pp: float
    t_tg: float

    @property
    def speed_pp(self) -> float:
        """Prompt tokens per second over all sequences."""
        return self.pl * self.pp / self.t_pp

    @property
    def speed_tg(self) -> float:
        """Generated tokens per second over all sequences."""
        return self.pl * self.tg / self.t_tg


class BareModel:
    """``n_seq_max`` sequences of up to ``n_ctx`` tokens. ``n_ubatch`` tokens go into a pass."""

    def __init__(
        self, opened: OpenModel, config: RuntimeConfig, n_seq_max: int, n_ctx: int
    ) -> None:
        self.backend = create_backend(opened.config, config)
        self.model = Qwen35(opened.config, opened.tensors.trunk, self.backend)
        sizes = MemorySizes(n_seq_max, n_seq_max * n_blocks_for(n_ctx))
        store = self.model.new_store(sizes.store_spec(config.cache_type_k))
        self.memory = HybridMemory(store, sizes)
        self._n_vocab = opened.config.n_vocab
        self._n_ubatch = config.n_ubatch
        self._rng = np.random.default_rng(0)
        self._forward([(0, self._tokens(N_WARM_UP), 1)])

    def measure(self, pp: int, tg: int, pl: int) -> Point:
        """Distinct random tokens in every sequence; logits of the last prompt token and of every
        generated one, as llama-batched-bench wants them."""
        self.memory.clear()
        began = time.perf_counter()
        for rows in prompt_passes(pl, pp, self._n_ubatch):
            self._forward([(s, self._tokens(n), int(is_last)) for s, n, is_last in rows])
        read = time.perf_counter()
        for _ in range(tg):
            self._forward([(seq_id, self._tokens(1), 1) for seq_id in range(pl)], is_decode=True)
        return Point(pp, tg, pl, read - began, time.perf_counter() - read)

    def _forward(self, rows: Sequence[tuple[int, Ids, int]], is_decode: bool = False) -> None:
        step = Step(tuple(self.memory.plan(*row, is_decode) for row in rows))
        self.model.forward(step, self.memory.store)
        self.memory.commit(step.rows)

    def _tokens(self, n: int) -> Ids:
        return self._rng.integers(0, self._n_vocab, n, dtype=np.int32)


def prompt_passes(pl: int, pp: int, n_ubatch: int) -> list[list[tuple[int, int, bool]]]:
    """Prompts packed into passes of at most ``n_ubatch`` tokens: (sequence, tokens, is the last
    piece of its prompt)."""
    passes: list[list[tuple[int, int, bool]]] = [[]]
    room = n_ubatch
    for seq_id in range(pl):
        n_left = pp
        while n_left:
            if not room:
                passes.append([])
                room = n_ubatch
            n = min(n_left, room)
            n_left -= n
            room -= n
            passes[-1].append((seq_id, n, n_left == 0))
    return passes
