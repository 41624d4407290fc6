"""Loading the small trained models for tests, on any backend."""

from functools import cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gguf_hybrid.backend.base import Backend, StoreSpec
from gguf_hybrid.backend.cpu import CpuBackend
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.demo import demo_path
from gguf_hybrid.model.qwen35 import Qwen35, load
from gguf_hybrid.step import BLOCK, ZERO_STATE, Row, Step
from gguf_hybrid.weights.reader import open_gguf

DATA = Path(__file__).parent.parent / "data"
FILES = [
    f"{model}-{kind}"
    for model in ("qwen35-tiny", "qwen35moe-tiny")
    for kind in ("BF16", "Q8_0", "Q4_K_M", "Q4_0")
]
DENSE, MOE = "qwen35-tiny-Q4_K_M", "qwen35moe-tiny-Q4_K_M"


def path_of(name: str) -> Path:
    return demo_path() if name == MOE else DATA / "models" / f"{name}.gguf"


def mlx_backend(config: ModelConfig) -> Backend:
    import mlx.core as mx

    from gguf_hybrid.backend.mlx import MlxBackend

    return MlxBackend(config, mx.cpu)


def cpu_backend(config: ModelConfig, arithmetic: str) -> Backend:
    return CpuBackend(config, arithmetic=arithmetic)


BACKENDS = {
    "mlx": mlx_backend,
    "cpu-exact": partial(cpu_backend, arithmetic="exact"),
    "cpu": partial(cpu_backend, arithmetic="fast"),
}
EXACT = ["mlx", "cpu-exact"]
DEFAULT = "cpu"


@cache
def model_of(name: str, backend: str = "mlx") -> Qwen35:
    file = open_gguf(path_of(name))
    config = ModelConfig.from_metadata(file.metadata, file.tensors)
    return load(file, config, BACKENDS[backend](config))


class Sequence:
    """One sequence of a test: feeds tokens step by step with state rows and blocks of its own."""

    def __init__(self, seq_id: int, rows: tuple[int, int], blocks: list[int]) -> None:
        self.seq_id, self.rows, self.blocks = seq_id, rows, blocks
        self.n = 0
        self.state = ZERO_STATE

    def row(self, tokens: list[int], n_logits: int = 1) -> Row:
        write = self.rows[1] if self.state == self.rows[0] else self.rows[0]
        n_blocks = -(-(self.n + len(tokens)) // BLOCK)
        ids = np.array(tokens, np.int32)
        blocks = np.array(self.blocks[:n_blocks], np.int32)
        return Row(self.seq_id, self.n, ids, self.state, (write,), blocks, n_logits)

    def commit(self, row: Row) -> None:
        self.n, self.state = row.end, row.state_write[0]


def sequences(n: int, n_blocks: int = 4) -> list[Sequence]:
    """``n`` sequences that share a store of ``spec_for(n)``."""
    return [
        Sequence(i, (2 * i, 2 * i + 1), list(range(i * n_blocks, (i + 1) * n_blocks)))
        for i in range(n)
    ]


def spec_for(n: int, n_blocks: int = 4, kv_type: str = "f16") -> StoreSpec:
    return StoreSpec(2 * n, n * n_blocks, kv_type)


def advance(
    model: Qwen35, store: object, work: list[tuple[Sequence, list[int]]], n_logits: int = 1
) -> list[npt.NDArray[np.float32]]:
    """One step over several sequences, committed; the logits of each row."""
    rows = [seq.row(tokens, min(n_logits, len(tokens))) for seq, tokens in work]
    step = Step(tuple(rows))
    logits = model.forward(step, store)  # type: ignore[arg-type]
    for (seq, _), row in zip(work, rows, strict=True):
        seq.commit(row)
    cuts = np.cumsum([row.n_logits for row in rows])[:-1]
    return np.split(logits, cuts)


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
