"""Prompt rows of one token, the last of every prompt: the launches of ``cuda_prompt`` as a graph.

One by one they would take longer to launch than to run.
"""

from collections.abc import Sequence

import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.metal.driver import Device, Graph
from gguf_hybrid.step import Ids, Row

from .cuda_decode import Operation
from .cuda_kernels import Kernels, Scratch
from .cuda_prompt import Prompter
from .cuda_store import CudaStore
from .rope import Rope


class SinglePrompter:
    """A ``Prompter`` with buffers of its own, as a graph needs such that do not move."""

    def __init__(self, device: Device, kernels: Kernels, config: ModelConfig, rope: Rope) -> None:
        self._device = device
        self._prompter = Prompter(device, kernels, config, rope)
        self._scratch = Scratch(device)

    def run(self, row: Row, operations: Sequence[Operation], store: CudaStore) -> int:
        """What ``Prompter.run`` returns; ``row`` has one token."""
        parts = self._prompter.inputs(row)
        key = ("prompt", row.n_logits, tuple(id(block) for _, block, _ in operations))
        found = store.graphs.get(key)
        if found is None:
            found = store.graphs[key] = self._capture(row, parts, operations, store)
        graph, host = found
        self._device.synchronize()
        packed = np.concatenate(parts)
        host[: packed.size] = packed
        graph.replay()
        return self._prompter.result(row, operations)

    def _capture(
        self, row: Row, parts: Sequence[Ids], operations: Sequence[Operation], store: CudaStore
    ) -> tuple[Graph, Ids]:
        """All rows of one token launch the same; only the number of blocks varies, and they come
        last. The first run happens outside the capture, so that kernels and buffers exist."""
        size = sum(part.size for part in parts[:-1]) + store.spec.n_blocks
        host = self._device.pinned(4 * size).view(np.int32)
        packed = np.concatenate(parts)
        host[: packed.size] = packed
        address = self._scratch("inputs", host.nbytes)

        def record() -> None:
            self._device.upload(address, host)
            self._prompter.launch(address, parts, operations, store, row)

        record()
        self._device.synchronize()
        return self._device.capture(record), host
