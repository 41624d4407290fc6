"""Whether a model, its states and its context fit into memory; answered before anything is loaded.

Weights of the compiled CPU backend stay in the mapped file and cost page cache only. Everything
else is added up in bytes and compared with what the device has free.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import MemoryLimitError
from gguf_hybrid.weights.reader import TensorInfo
from gguf_hybrid.weights.repack import layout_of

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Demand:
    """Bytes a server needs: ``weights`` in memory, ``states`` of all slots, ``per_token`` of KV."""

    weights: int
    states: int
    per_token: int

    def total(self, n_ctx: int) -> int:
        return self.weights + self.states + n_ctx * self.per_token


def mlx_nbytes(tensors: Iterable[TensorInfo]) -> int:
    """Bytes of the tensors in the layouts of the MLX backend."""
    return int(sum(t.size * layout_of(t.type).bits_per_weight(32) / 8 for t in tensors))


def demand_of(
    config: ModelConfig, weights: int, n_slots: int, n_rs_seq: int, kv_types: tuple[str, str]
) -> Demand:
    states = n_slots * (1 + n_rs_seq) * config.state_nbytes
    return Demand(weights, states, config.kv_nbytes_per_token(*kv_types))


def fitting_context(demand: Demand, wanted: int, free: int, fit_ctx: int) -> int:
    """The largest total context up to ``wanted`` that leaves memory, a multiple of 256.

    Raises MemoryLimitError with the numbers if not even ``fit_ctx`` tokens fit.
    """
    if demand.total(wanted) <= free:
        return wanted
    least = min(fit_ctx, wanted)
    check_fits(demand, least, free)
    n = (free - demand.weights - demand.states) // max(demand.per_token, 1)
    return max(n // 256 * 256, least)


def check_fits(demand: Demand, n_ctx: int, free: int) -> None:
    """MemoryLimitError, naming every part, if ``n_ctx`` tokens do not fit."""
    if demand.total(n_ctx) > free:
        raise MemoryLimitError(
            f"the model does not fit: {demand.weights / GIB:.2f} GiB of weights"
            f" + {demand.states / MIB:.0f} MiB of states"
            f" + {n_ctx * demand.per_token / MIB:.0f} MiB for {n_ctx} tokens of context"
            f" = {demand.total(n_ctx) / GIB:.2f} GiB, and {free / GIB:.2f} GiB are free"
            " (fewer slots: -np, less context: -c, a smaller quantisation)"
        )
