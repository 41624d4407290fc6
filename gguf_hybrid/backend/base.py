"""What the model asks of a compute backend: coarse operations, so that kernels can fuse.

The model (``gguf_hybrid.model``) is written once against these operations; the plain MLX backend is
the reference, the compiled CPU backend and the GPU kernels must agree with it. Activations ``x`` are
opaque to the model: float32 [n_tokens, n_embd] in whatever array type the backend computes with.
Weights are opaque too: ``prepare_*`` makes the layout the backend wants and may drop the source.

Bit-identity: every operation computes each row of a step as if it were alone. One accumulation order
per weight type whatever the row count, expert outputs summed in rank order, attention split by the
row's own length only, delta-rule chunks at absolute multiples of ``CHUNK``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.step import Step
from gguf_hybrid.weights.reader import TensorInfo

Floats = npt.NDArray[np.float32]
Tensors = Mapping[str, TensorInfo]


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

    nbytes: int

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

    def restore_state(self, snapshot: StateSnapshot, row: int) -> None: ...

    def load_state(self, values: Floats, row: int) -> None:
        """The inverse of ``StateSnapshot.to_host``."""
        ...

    def copy_block(self, source: int, target: int) -> None: ...

    def read_block(self, block: int) -> npt.NDArray[np.uint8]:
        """Raw bytes of one KV block: per attention layer K then V, [BLOCK, n_head_kv, head_dim]."""
        ...

    def write_block(self, block: int, raw: npt.NDArray[np.uint8]) -> None: ...

    def free_block(self, block: int) -> None:
        """The block's contents will not be read again; its memory may be returned."""
        ...


class Backend(Protocol):
    """Loads weights and runs the operations of one step. Used from the engine thread only."""

    config: ModelConfig
    name: str
    """As shown in the start-up log, for example ``mlx (cpu)`` or ``cpu (avx512-vnni)``."""

    def prepare_embedding(self, token_embd: TensorInfo) -> Any: ...

    def prepare_block(self, layer: int, tensors: Tensors) -> Any:
        """Weights of one block; keys are GGUF names without the ``blk.N.`` prefix."""
        ...

    def prepare_head(self, output_norm: TensorInfo, output: TensorInfo, embedding: Any) -> Any:
        """Final norm and output head; ``output`` is ``token_embd.weight`` in tied files, and
        ``embedding`` the prepared one, so that the same memory can serve both."""
        ...

    def weight_nbytes(self) -> int:
        """Memory taken by prepared weights, mapped file pages not counted."""
        ...

    def new_store(self, spec: StoreSpec) -> Store: ...

    def begin(self, step: Step, store: Store) -> Any:
        """The step in the backend's own terms (device index arrays, segments): the ``plan``."""
        ...

    def embed(self, embedding: Any, plan: Any) -> Any: ...

    def gated_delta_net(self, block: Any, x: Any, plan: Any, index: int) -> Any:
        """x + GDN(RMS(x) * attn_norm): projections, causal convolution, gated delta rule, gated
        norm, output projection. ``index`` counts recurrent layers. Reads and writes state rows."""
        ...

    def attend(self, block: Any, x: Any, plan: Any, index: int) -> Any:
        """x + attention(RMS(x) * attn_norm), gated, over the rows' KV blocks. ``index`` counts
        attention layers. Writes K and V of the step's tokens, then reads."""
        ...

    def feed_forward(self, block: Any, x: Any, plan: Any) -> Any:
        """x + FFN(RMS(x) * post_attention_norm), dense or experts with the shared expert."""
        ...

    def logits(self, head: Any, x: Any, plan: Any) -> Floats:
        """Evaluate the step. float32 [n_logits, n_vocab] on the host, rows of ``logit_index``."""
        ...

