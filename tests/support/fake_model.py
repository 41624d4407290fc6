"""A model whose logits are a hash of everything it should have absorbed, and nothing else.

Rows start as garbage and freed blocks turn into garbage again, so a stale state, a wrong block or a
leak between sequences changes the logits. Like a real model's rounding, the state depends on where
a row was cut, unless the cut lies at a multiple of ``CHUNK``: cuts that follow the neighbours show.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gguf_hybrid.memory.sequence_file import SequenceFormat
from gguf_hybrid.memory.store import Bytes, Floats, StoreSpec
from gguf_hybrid.step import BLOCK, CHUNK, ZERO_STATE, Row, Step

N_VOCAB = 97
N_EMBD = 8
N_STATE = 4
N_PLANES = 2
PRIME = 65521
GARBAGE = 54321
_FACTORS = np.array([131, 137, 139, 149], dtype=np.int64)

LAYOUT = SequenceFormat(
    fingerprint="fake",
    kv_type="f32",
    n_planes=N_PLANES,
    block_nbytes=N_PLANES * BLOCK * 4,
    state_shape=(1, N_STATE),
    n_vocab=N_VOCAB,
)


@dataclass(frozen=True)
class FakeSnapshot:
    values: Floats
    nbytes: int = 4 * N_STATE

    def to_host(self) -> Floats:
        return self.values[None].copy()


class FakeStore:
    state_row_nbytes = 4 * N_STATE
    block_nbytes = LAYOUT.block_nbytes

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        self.state_nbytes = spec.n_state_rows * self.state_row_nbytes
        self.states = np.full((spec.n_state_rows, N_STATE), GARBAGE, np.float32)
        self.cells: dict[int, np.ndarray] = {}

    def block(self, block: int) -> np.ndarray:
        assert 0 <= block < self.spec.n_blocks
        return self.cells.setdefault(block, np.full((N_PLANES, BLOCK), GARBAGE, np.float32))

    def kv_nbytes(self) -> int:
        return len(self.cells) * self.block_nbytes

    def copy_state(self, source: int, target: int) -> None:
        self.states[target] = self.states[source]

    def snapshot_state(self, row: int) -> FakeSnapshot:
        return FakeSnapshot(self.states[row].copy())

    def restore_state(self, snapshot: FakeSnapshot, row: int) -> None:
        self.states[row] = snapshot.values

    def load_state(self, values: Floats, row: int) -> None:
        self.states[row] = values[0]

    def copy_block(self, source: int, target: int) -> None:
        self.block(target)[:] = self.block(source)

    def read_block(self, block: int) -> Bytes:
        return self.block(block).reshape(-1).view(np.uint8).copy()

    def write_block(self, block: int, raw: Bytes) -> None:
        self.block(block)[:] = raw.copy().view(np.float32).reshape(N_PLANES, BLOCK)

    def free_block(self, block: int) -> None:
        self.cells.pop(block, None)  # reserved, but its step failed before it was written


@dataclass(frozen=True)
class FakeConfig:
    n_vocab: int = N_VOCAB
    n_ctx_train: int = 4096


class FakeModel:
    """``on_row`` is asked about each row; it may raise or return "nan". ``rounds`` False makes
    the state independent of cuts."""

    def __init__(
        self, on_row: Callable[[Row], str | None] = lambda row: None, rounds: bool = True
    ) -> None:
        self.config = FakeConfig()
        self.on_row = on_row
        self.rounds = rounds
        self.steps: list[Step] = []

    n_sampled_rows = 0

    def new_store(self, spec: StoreSpec) -> FakeStore:
        return FakeStore(spec)

    def forward(self, step: Step, store: FakeStore) -> Floats:
        self.steps.append(step)
        logits = [self._run(row, store) for row in step.rows]
        return np.concatenate(logits).reshape(-1, N_VOCAB).astype(np.float32)

    def hidden(self, step: Step, store: FakeStore) -> Floats:
        """Some of the logits each token would have."""
        self.steps.append(step)
        values = [self._run(replace(row, n_logits=len(row)), store) for row in step.rows]
        return np.concatenate(values).reshape(-1, N_VOCAB)[:, :N_EMBD].astype(np.float32)

    def _run(self, row: Row, store: FakeStore) -> np.ndarray:
        states = self._states(row, store)
        for age, target in enumerate(row.state_write):
            store.states[target] = states[-1 - age]
        for position, token in enumerate(row.tokens, row.start):
            cells = store.block(int(row.blocks[position // BLOCK]))
            cells[:, position % BLOCK] = (token, token * 7 + position)
        verdict = self.on_row(row)  # after the writes: a failing step leaves scratch behind
        wanted = range(len(row) - row.n_logits, len(row))
        logits = [self._logits(row, store, states[i], row.start + i + 1) for i in wanted]
        if verdict == "nan":
            logits = [np.full(N_VOCAB, np.nan) for _ in wanted]
        return np.array(logits).reshape(-1)

    def _states(self, row: Row, store: FakeStore) -> list[np.ndarray]:
        state = np.zeros(N_STATE, np.int64)
        if row.state_read != ZERO_STATE:
            state = store.states[row.state_read].astype(np.int64)
        states = []
        for position, token in enumerate(row.tokens, row.start):
            state = (state * _FACTORS + 31 * int(token) + position + 1) % PRIME
            states.append(state)
        if self.rounds and row.end % CHUNK:
            states[-1] = (states[-1] + 1) % PRIME
        return states

    def _logits(self, row: Row, store: FakeStore, state: np.ndarray, n: int) -> np.ndarray:
        cells = np.concatenate([store.block(int(b)) for b in row.blocks], axis=1)[:, :n]
        weights = np.arange(1, n + 1) % 251 + 1
        seen = int((cells.astype(np.int64) * weights).sum() % PRIME)
        mix = int(state @ np.array([3, 5, 7, 11])) + 13 * seen
        return (mix * (np.arange(N_VOCAB) * 2654435761 % 1009 + 1) % PRIME) / 4096.0
