"""Qwen3.5 / 3.6 / Qwen3-Next as a chain of coarse backend operations.

The graph is written once; what an operation does with a row is the backend's business. A block
keeps its tensors under their GGUF names. The next-token (MTP) block is recognised by the loader and
left out here. x <- x + mixer(RMS(x)); x <- x + FFN(RMS(x)) per block, then norm and head.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gguf_hybrid.backend.base import (
    Backend,
    Floats,
    Launched,
    SamplingBackend,
    Store,
    StoreSpec,
)
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.sampling.device import Choice
from gguf_hybrid.step import Step
from gguf_hybrid.weights.decode import computable
from gguf_hybrid.weights.layout import check_tensors
from gguf_hybrid.weights.reader import GGUFFile, TensorInfo

Progress = Callable[[float], None]
T = TypeVar("T")


class Qwen35:
    """A loaded model. Weights are prepared block by block, so loading needs the backend's form of
    the file and one block more."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, TensorInfo],
        backend: Backend,
        progress: Progress = lambda fraction: None,
    ) -> None:
        self.config = config
        self.backend = backend
        outer = {n: t for n, t in tensors.items() if not n.startswith("blk.")}
        outer = computable(outer, backend.kernel_types)
        self.token_embd = backend.prepare_embedding(outer["token_embd.weight"])
        self.blk: list[Any] = []
        for layer in range(config.n_layer):
            block = computable(_block_tensors(tensors, layer), backend.kernel_types)
            self.blk.append(backend.prepare_block(layer, block))
            progress((layer + 1) / (config.n_layer + 1))
        output = outer.get("output.weight", outer["token_embd.weight"])
        self.head = backend.prepare_head(outer["output_norm.weight"], output, self.token_embd)
        progress(1.0)

    def new_store(self, spec: StoreSpec) -> Store:
        """Empty state rows and KV blocks for this model."""
        return self.backend.new_store(spec)

    def forward(self, step: Step, store: Store) -> Floats:
        """Run one step: float32 [n_logits, n_vocab], in the order of ``step.logit_index``."""
        return self._evaluate(step, store, self.backend.logits)

    @property
    def n_sampled_rows(self) -> int:
        """Most rows of a step that ``launch`` takes; 0 where only the host can choose tokens."""
        backend = self.backend
        return backend.n_sampled_rows if isinstance(backend, SamplingBackend) else 0

    def launch(
        self, step: Step, store: Store, choices: Sequence[Choice | None], sources: Sequence[int]
    ) -> Launched:
        """Start a step of single tokens whose next tokens the device chooses; see
        ``SamplingBackend.launch``."""
        backend = self.backend
        assert isinstance(backend, SamplingBackend)
        return self._evaluate(
            step, store, partial(backend.launch, choices=choices, sources=sources)
        )

    def hidden(self, step: Step, store: Store) -> Floats:
        """Run one step for embeddings: the hidden state of every token after the final norm,
        float32 [n_tokens, n_embd], in the order of ``step.tokens``."""
        return self._evaluate(step, store, self.backend.hidden)

    def _evaluate(self, step: Step, store: Store, end: Callable[[Any, Any, Any], T]) -> T:
        """``end`` is the backend's last operation, which computes or launches them all."""
        plan = self.backend.begin(step, store)
        try:
            return end(self.head, self._blocks(plan), plan)
        except Exception:
            self.backend.undo(plan)
            raise

    def _blocks(self, plan: Any) -> Any:
        backend = self.backend
        x = backend.embed(self.token_embd, plan)
        n_recurrent = n_attention = 0
        for block, recurrent in zip(self.blk, self.config.recurrent_layers, strict=True):
            if recurrent:
                x = backend.gated_delta_net(block, x, plan, n_recurrent)
                n_recurrent += 1
            else:
                x = backend.attend(block, x, plan, n_attention)
                n_attention += 1
            x = backend.feed_forward(block, x, plan)
        return x


def _block_tensors(tensors: Mapping[str, TensorInfo], layer: int) -> dict[str, TensorInfo]:
    prefix = f"blk.{layer}."
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def load(
    file: GGUFFile, config: ModelConfig, backend: Backend, progress: Progress = lambda _: None
) -> Qwen35:
    """The model of an opened file; raises GGUFError if its tensors are not those of ``config``."""
    trunk = check_tensors(config, file.tensors, str(file.path)).trunk
    return Qwen35(config, trunk, backend, progress)
