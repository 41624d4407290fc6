"""What the model asks of a compute backend: coarse operations, so that kernels can fuse.

The model (``gguf_hybrid.model``) is written once against these operations; the plain MLX backend
is the reference, the compiled CPU backend and the GPU kernels must agree with it. Activations ``x``
are opaque to the model: float32 [n_tokens, n_embd] in whatever array type the backend computes
with. Weights are opaque too: ``prepare_*`` makes the layout the backend wants and may drop the
source.

Bit-identity: every operation computes each row of a step as if it were alone. One accumulation
order per weight type whatever the row count, expert outputs summed in rank order, attention split
by the row's own length only, delta-rule chunks at absolute multiples of ``CHUNK``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.memory.store import Floats, StateSnapshot, Store, StoreSpec
from gguf_hybrid.sampling.device import Choice
from gguf_hybrid.step import Step
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.reader import TensorInfo

Tensors = Mapping[str, TensorInfo]

__all__ = [
    "Backend",
    "Floats",
    "Launched",
    "Picked",
    "SamplingBackend",
    "StateSnapshot",
    "Store",
    "StoreSpec",
    "Tensors",
]

GIVEN = -1
"""Source of a row whose token the step holds itself."""


class Backend(Protocol):
    """Loads weights and runs the operations of one step. Used from the engine thread only."""

    config: ModelConfig
    name: str
    """As shown in the start-up log, for example ``mlx (cpu)`` or ``cpu (avx512-vnni)``."""
    kernel_types: frozenset[GGMLType]
    """Matrix types ``prepare_*`` takes; others are decoded to F32 before they get there."""

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

    def begin(self, step: Step, store: Any) -> Any:
        """The step in the backend's own terms (device index arrays, segments): the ``plan``.
        ``store`` is one that ``new_store`` made."""
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

    def hidden(self, head: Any, x: Any, plan: Any) -> Floats:
        """Evaluate the step for embeddings, in place of ``logits``: RMS(x) * output_norm of every
        token, float32 [n_tokens, n_embd] on the host, in the order of ``Step.tokens``."""
        ...

    def undo(self, plan: Any) -> None:
        """The step failed: what it wrote into the store must not be in the way of the next one.
        Committed cells and rows are as before it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Picked:
    """What a launched step came to.

    tokens  of every row; -1 where the logits were not finite, any for a row without a choice
    logits  float32 [n, n_vocab] of the rows without a choice, in order
    """

    tokens: list[int]
    logits: Floats


class Launched(Protocol):
    """A step that the device works on."""

    def wait(self) -> Picked:
        """Until it is done. What fails only now has cost the device; nothing is as it was."""
        ...


@runtime_checkable
class SamplingBackend(Protocol):
    """A backend that can choose tokens itself, so that the next step need not wait for the host."""

    n_sampled_rows: int
    """Most rows of one such step; each has one token and wants its logits."""

    def launch(
        self, head: Any, x: Any, plan: Any, choices: Sequence[Choice | None], sources: Sequence[int]
    ) -> Launched:
        """Start the step and return. Row i takes the token that the step launched last chose for
        its row ``sources[i]``, or its own for ``GIVEN``; ``choices[i]`` says how its next one is
        chosen, None that its logits are wanted. A failure leaves everything as it was."""
        ...
