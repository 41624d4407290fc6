"""What ``doctor`` measures: speed alone and of four sequences, and what memory holds."""

import time
from typing import Any

import numpy as np

from gguf_hybrid.backend.select import free_memory
from gguf_hybrid.fit import MIB
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.runtime import OpenModel, memory_demand
from gguf_hybrid.runtime_config import RuntimeConfig

from .doctor_laws import Sequences

N_PROMPT = 64
N_PASSES = 8
N_TOGETHER = 4
CONTEXTS = (4096, 32768)


def speed(model: Qwen35) -> dict[str, float]:
    """Tokens per second: a prompt of N_PROMPT tokens, one sequence, and N_TOGETHER at once."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, model.config.n_vocab, N_PROMPT).tolist()
    sequences = Sequences(model, N_TOGETHER)
    for seq in range(N_TOGETHER):
        sequences.feed((seq, tokens[:2]))
    return {
        "prompt_per_second": N_PROMPT / _seconds(sequences, 1, tokens, 1),
        "one_per_second": 1 / _seconds(sequences, 1, tokens[:1], N_PASSES),
        "together": N_TOGETHER,
        "together_per_second": N_TOGETHER / _seconds(sequences, N_TOGETHER, tokens[:1], N_PASSES),
    }


def _seconds(sequences: Sequences, width: int, tokens: list[int], n_passes: int) -> float:
    """Mean seconds of a pass in which each of ``width`` sequences reads ``tokens``."""
    began = time.perf_counter()
    for _ in range(n_passes):
        sequences.feed(*((seq, tokens) for seq in range(width)), decoding=len(tokens) == 1)
    return (time.perf_counter() - began) / n_passes


def memory(opened: OpenModel, config: RuntimeConfig) -> dict[str, Any]:
    """Bytes of weights, of a slot's states and of 1,000 tokens; slots that fit by context."""
    demand = memory_demand(opened, config, 1)
    free = free_memory(config)
    left = max(free - demand.weights - config.fit_target_mib * MIB, 0)
    slots = {str(n_ctx): left // (demand.states + n_ctx * demand.per_token) for n_ctx in CONTEXTS}
    return {
        "free": free,
        "weights": demand.weights,
        "per_slot": demand.states,
        "per_1000_tokens": 1000 * demand.per_token,
        "slots_that_fit": slots,
    }
