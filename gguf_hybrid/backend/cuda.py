"""The CUDA backend: own kernels through the driver, no MLX in the loop.

Operations are recorded while the model runs and computed by ``logits``: decode rows together as a
captured graph (``cuda_decode``), prompt rows one by one on the tensor units (``cuda_prompt``). A
row's result does not depend, bit for bit, on the other rows, nor a prompt's on cuts at multiples of
``CHUNK``. Weights, states and KV lie in device memory. Matrix products of decode steps round
activations to int8 in groups of 32, those of prompts to f16.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import BackendError
from gguf_hybrid.metal.driver import Device
from gguf_hybrid.sampling.device import Choice
from gguf_hybrid.step import Row, Step
from gguf_hybrid.weights.reader import TensorInfo

from .base import Floats, Picked, StoreSpec, Tensors
from .cuda_blocks import Attention, DeltaNet, FeedForward, Head, attention, delta_net, feed_forward
from .cuda_decode import HIDDEN, MAX_ROWS, SAMPLE, Decoder, Host, Operation
from .cuda_kernels import Kernels
from .cuda_prompt import Prompter
from .cuda_store import CudaStore
from .cuda_weights import SUPERBLOCK_NBYTES, Matrix, Uploader
from .rope import rope_of

log = logging.getLogger(__name__)

HEAD_DIMS = (64, 128, 256)
STATE_SIZES = (32, 64, 128)
UNUSED_REFERENCES = 3
"""What ``sys.getrefcount`` says of the pinned array when nobody holds a view of it: the backend
and its own view do. Views of views refer to the array at the bottom."""


@dataclass(slots=True)
class Plan:
    """A step and the operations recorded so far; stands for the activations too."""

    step: Step
    store: CudaStore
    operations: list[Operation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Block:
    mixer: DeltaNet | Attention
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class Running:
    """``base.Launched``: a step whose tokens the device chooses."""

    device: Device
    host: Host
    n_rows: int
    logits: Floats

    def wait(self) -> Picked:
        self.device.wait(self.host.free)
        return Picked(self.host.picks[: self.n_rows].tolist(), self.logits)


class CudaBackend:
    """``gguf_hybrid.backend.base.Backend`` on one NVIDIA GPU.

    Raises BackendError without a driver, or for sizes the kernels do not cover.
    """

    kernel_types = frozenset(SUPERBLOCK_NBYTES)
    n_sampled_rows = MAX_ROWS

    def __init__(self, config: ModelConfig, device: Device) -> None:
        _check_sizes(config)
        self.config = config
        self.device = device
        self.name = f"cuda ({self.device.name}, {self.device.arch})"
        self.kernels = Kernels(device)
        rope = rope_of(config)
        self._upload = Uploader(self.device, self.kernels)
        self._decoder = Decoder(self.device, self.kernels, config, rope)
        self._prompter = Prompter(self.device, self.kernels, config, rope)
        self._pinned = np.empty(0, np.uint8)
        self._logits = self._pinned.view(np.float32).reshape(0, config.n_vocab)

    # -- weights ------------------------------------------------------------------------------

    def prepare_embedding(self, token_embd: TensorInfo) -> Matrix:
        return self._upload.matrix(token_embd)

    def prepare_block(self, layer: int, tensors: Tensors) -> Block:
        recurrent = self.config.recurrent_layers[layer]
        mixer: DeltaNet | Attention
        if recurrent:
            mixer = delta_net(self._upload, tensors)
        else:
            mixer = attention(self._upload, self.config, tensors)
        return Block(mixer, feed_forward(self._upload, tensors))

    def prepare_head(self, output_norm: TensorInfo, output: TensorInfo, embedding: Matrix) -> Head:
        tied = output.name == "token_embd.weight"
        matrix = embedding if tied else self._upload.matrix(output)
        return Head(self._upload.vector(output_norm), matrix)

    def weight_nbytes(self) -> int:
        return self._upload.nbytes

    # -- one step -----------------------------------------------------------------------------

    def new_store(self, spec: StoreSpec) -> CudaStore:
        return CudaStore(self.device, self.config, spec)

    def begin(self, step: Step, store: CudaStore) -> Plan:
        return Plan(step, store)

    def embed(self, embedding: Matrix, plan: Plan) -> Plan:
        return _recorded(plan, "embed", embedding)

    def gated_delta_net(self, block: Block, x: Plan, plan: Plan, index: int) -> Plan:
        return _recorded(plan, "delta_net", block.mixer, index)

    def attend(self, block: Block, x: Plan, plan: Plan, index: int) -> Plan:
        return _recorded(plan, "attend", block.mixer, index)

    def feed_forward(self, block: Block, x: Plan, plan: Plan) -> Plan:
        return _recorded(plan, "feed_forward", block.feed_forward)

    def logits(self, head: Head, x: Plan, plan: Plan) -> Floats:
        """The array is used again for the next step, unless someone still holds it."""
        _recorded(plan, "logits_of", head)
        wanted = [row.n_logits for row in plan.step.rows]
        out = self._buffer(sum(wanted))
        self._evaluate(plan, wanted, out)
        return out

    def hidden(self, head: Head, x: Plan, plan: Plan) -> Floats:
        """RMS(x) * output_norm of every token, float32 [n_tokens, n_embd]."""
        _recorded(plan, HIDDEN, head)
        out = np.empty((plan.step.n_tokens, self.config.n_embd), np.float32)
        self._evaluate(plan, [len(row) for row in plan.step.rows], out)
        return out

    def launch(
        self,
        head: Head,
        x: Plan,
        plan: Plan,
        choices: Sequence[Choice | None],
        sources: Sequence[int],
    ) -> Running:
        _recorded(plan, SAMPLE, head)
        rows = plan.step.rows
        assert all(row.is_decode and row.n_logits == 1 for row in rows) and len(rows) <= MAX_ROWS
        n_logits = choices.count(None)
        logits = self._buffer(n_logits) if n_logits else np.empty((0, 0), np.float32)
        host = self._decoder.sample(rows, plan.operations, plan.store, choices, sources, logits)
        return Running(self.device, host, len(rows), logits)

    def _evaluate(self, plan: Plan, wanted: list[int], out: Floats) -> None:
        """Compute the step; row i fills the next ``wanted[i]`` rows of ``out``."""
        rows, offsets = plan.step.rows, [0, *np.cumsum(wanted).tolist()]
        decoding = [i for i, row in enumerate(rows) if row.is_decode]
        for first in range(0, len(decoding), MAX_ROWS):
            self._decode(decoding[first : first + MAX_ROWS], offsets, plan, out)
        for i, row in enumerate(rows):
            if not row.is_decode:
                address = self._prompter.run(row, plan.operations, plan.store)
                self._fetch(out[offsets[i] : offsets[i + 1]], address)
        self.device.synchronize()

    def undo(self, plan: Plan) -> None:
        """Nothing to do: cells and rows that were not committed are scratch."""

    def _decode(self, which: list[int], offsets: list[int], plan: Plan, out: Floats) -> None:
        rows: list[Row] = [plan.step.rows[i] for i in which]
        address = self._decoder.run(rows, plan.operations, plan.store)
        wanted = [(j, offsets[i]) for j, i in enumerate(which) if offsets[i + 1] > offsets[i]]
        if wanted and [at - wanted[0][1] for _, at in wanted] == [j for j, _ in wanted]:
            self._fetch(out[wanted[0][1] :][: len(wanted)], address)
            return
        for j, at in wanted:
            self._fetch(out[at : at + 1], address + 4 * j * out.shape[1])

    def _fetch(self, out: Floats, address: int) -> None:
        if out.size:
            self.device.download(out, address)

    def _buffer(self, n: int) -> Floats:
        """[n, n_vocab] in pinned memory."""
        if len(self._logits) < n or sys.getrefcount(self._pinned) > UNUSED_REFERENCES:
            nbytes = 4 * max(n, 1) * self.config.n_vocab
            self._pinned = self.device.pinned(nbytes)
            self._logits = self._pinned.view(np.float32).reshape(max(n, 1), -1)
        return self._logits[:n]


def _recorded(plan: Plan, name: str, weights: Any, index: int = 0) -> Plan:
    plan.operations.append((name, weights, index))
    return plan


def _check_sizes(config: ModelConfig) -> None:
    sizes: list[tuple[str, int, tuple[int, ...]]] = [
        ("attention.key_length", config.head_dim, HEAD_DIMS),
        ("ssm.state_size", config.ssm_state_size, STATE_SIZES),
    ]
    for key, value, known in sizes:
        if value not in known:
            raise BackendError(f"cuda: {key} is {value}, kernels exist for {known}")
