"""What the memory asks of a backend: the arrays behind state rows and KV blocks.

The memory decides which row and which block means what; a store only holds, copies and hands out
their values. All methods are called from the engine thread, between steps.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """Sizes of the storage for states and KV.

    n_state_rows  rows of the recurrent pool, n_seq_max * (1 + n_rs_seq)
    n_blocks      upper bound of KV blocks; memory is committed as blocks are first written
    kv_type       "f16" or "f32"
    """

    n_state_rows: int
    n_blocks: int
    kv_type: str = "f16"


class StateSnapshot(Protocol):
    """A copy of one pool row over all recurrent layers, held on the device.

    ``nbytes`` is its size; ``to_host`` gives float32 [n_recurrent, row_floats]: per layer the
    convolution state (conv_kernel - 1, conv_dim), oldest first, then the delta state
    (n_v_heads, D, D), k fastest.
    """

    @property
    def nbytes(self) -> int: ...

    def to_host(self) -> Floats: ...


class Store(Protocol):
    """State rows and KV blocks of all layers. Only these methods touch stored values."""

    spec: StoreSpec
    state_nbytes: int
    """Bytes of the whole state pool."""
    block_nbytes: int
    """Bytes of one KV block over all attention layers, K and V."""

    def kv_nbytes(self) -> int:
        """Bytes committed for KV now."""
        ...

    def copy_state(self, source: int, target: int) -> None: ...

    def snapshot_state(self, row: int) -> StateSnapshot: ...

    def restore_state(self, snapshot: Any, row: int) -> None:
        """``snapshot`` is one that this store made."""
        ...

    def load_state(self, values: Floats, row: int) -> None:
        """The inverse of ``StateSnapshot.to_host``."""
        ...

    def copy_block(self, source: int, target: int) -> None: ...

    def read_block(self, block: int) -> Bytes:
        """Raw bytes of one KV block: per attention layer K then V, [BLOCK, n_head_kv, head_dim]."""
        ...

    def write_block(self, block: int, raw: Bytes) -> None: ...

    def free_block(self, block: int) -> None:
        """The block's contents will not be read again; its memory may be returned."""
        ...
