"""Perplexity of a text, counted as llama-perplexity counts it: ``gguf-hybrid perplexity``.

The text is cut into chunks of ``n_ctx`` tokens; each is one fresh sequence, and the second half of
it is scored: exp(mean negative log-likelihood of tokens n_ctx/2 + 1 ... n_ctx - 1 given what stands
before them in the chunk).
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gguf_hybrid.backend.base import StoreSpec
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.step import BLOCK, ZERO_STATE, Row, Step


def running_perplexity(
    model: Qwen35, tokens: Sequence[int], n_ctx: int = 512, kv_type: str = "f16"
) -> Iterator[float]:
    """The estimate after each whole chunk of ``tokens``."""
    total, count = 0.0, 0
    for first in range(0, len(tokens) - n_ctx + 1, n_ctx):
        chunk = np.asarray(tokens[first : first + n_ctx], np.int32)
        logits = chunk_logits(model, chunk, n_ctx - n_ctx // 2, kv_type)
        scored = log_likelihood(logits[:-1], chunk[n_ctx // 2 + 1 :])
        total, count = total - float(scored.sum()), count + len(scored)
        yield math.exp(total / count)


def chunk_logits(
    model: Qwen35, tokens: npt.NDArray[np.int32], n_logits: int, kv_type: str
) -> npt.NDArray[np.float32]:
    """Logits of the last ``n_logits`` positions of a fresh sequence, float32 [n, n_vocab]."""
    n_blocks = -(-len(tokens) // BLOCK)
    store = model.new_store(StoreSpec(1, n_blocks, kv_type))
    blocks = np.arange(n_blocks, dtype=np.int32)
    row = Row(0, 0, tokens, ZERO_STATE, (0,), blocks, n_logits)
    return model.forward(Step((row,)), store)


def log_likelihood(
    logits: npt.NDArray[np.float32], targets: npt.NDArray[np.int32]
) -> npt.NDArray[np.float64]:
    """log p(target) per row, float64 [n]."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    picked = x[np.arange(len(x)), targets]
    result: npt.NDArray[np.float64] = picked - np.log(np.exp(x).sum(axis=-1))
    return result
