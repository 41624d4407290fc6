"""How many slots there are and how the context is shared out over them (contract, 18.1).

Pure arithmetic, so that ``/props``, ``/slots``, the start-up log and the overflow error all show
the number the engine works with.
"""

from dataclasses import dataclass

from gguf_hybrid.memory.kv import n_blocks_for

N_PARALLEL_AUTO = 4
N_CTX_STEP = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """What follows from ``-c``, ``-np`` and ``--kv-unified``.

    n_ctx        tokens one slot can hold
    n_ctx_total  tokens all slots can hold together
    n_blocks     KV blocks for that; unified, one more per further slot for half-filled tails
    """

    n_slots: int
    n_ctx: int
    n_ctx_total: int
    n_blocks: int
    kv_unified: bool


def share_context(
    n_ctx: int,
    n_parallel: int,
    kv_unified: bool,
    n_ctx_train: int,
    kv_unified_per_slot: int = 0,
) -> Limits:
    """Slots and their context.

    ``n_ctx`` 0 means the training context, ``n_parallel`` -1 four slots over a unified pool,
    ``kv_unified_per_slot`` 0 no limit per slot.
    """
    if n_parallel < 0:
        n_parallel, kv_unified = N_PARALLEL_AUTO, True
    if kv_unified:
        cap = min(n_ctx_train, kv_unified_per_slot or n_ctx_train)
        unset = n_parallel * kv_unified_per_slot or n_ctx_train
        total = _padded(n_ctx or unset)
        n_blocks = n_blocks_for(total) + n_parallel - 1
        return Limits(n_parallel, min(total, cap), total, n_blocks, True)
    total = _padded(n_ctx or n_ctx_train * n_parallel)
    n_ctx_slot = min(_padded(-(-total // n_parallel)), n_ctx_train)
    n_blocks = n_parallel * n_blocks_for(n_ctx_slot)
    return Limits(n_parallel, n_ctx_slot, n_ctx_slot * n_parallel, n_blocks, False)


def _padded(n_tokens: int) -> int:
    return -(-n_tokens // N_CTX_STEP) * N_CTX_STEP
