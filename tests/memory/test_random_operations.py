"""Random operations on a memory, compared with a plain list of tokens per sequence."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.fake_model import LAYOUT, FakeModel

from gguf_hybrid.memory.hybrid import HybridMemory, KVExhausted, MemorySizes, Snapshot
from gguf_hybrid.memory.sequence_file import pack, unpack
from gguf_hybrid.step import Step

SIZES = MemorySizes(n_seq_max=3, n_live=6, n_cached=3, n_rs_seq=2)

sequences = st.integers(0, SIZES.n_seq_max - 1)
lengths = st.one_of(st.just(1), st.integers(2, 5), st.integers(6, 400))


class MemoryMachine(RuleBasedStateMachine):
    """``expected`` is what each sequence should have absorbed; the model's hash must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.model = FakeModel(rounds=False)
        self.memory = HybridMemory(self.model.new_store(SIZES.store_spec("f32")), SIZES)
        self.expected: list[list[int]] = [[] for _ in range(SIZES.n_seq_max)]
        self.snapshots: list[tuple[Snapshot, list[int]]] = []
        self.n_fed = 0

    @rule(seq_ids=st.sets(sequences, min_size=1), n=lengths, fails=st.booleans())
    def run_step(self, seq_ids: set[int], n: int, fails: bool) -> None:
        rows, before = [], self.memory.pool.n_used
        for seq_id in sorted(seq_ids):
            self.n_fed += 1
            ids = np.random.default_rng(self.n_fed).integers(0, 97, n).astype(np.int32)
            try:
                rows.append(self.memory.plan(seq_id, ids, 1))
            except KVExhausted:
                assert self.memory.pool.n_live_used + len(ids) // 256 + 2 > SIZES.n_live
        if not rows:
            assert self.memory.pool.n_used == before
            return
        step = Step(tuple(rows))
        logits = self.model.forward(step, self.memory.store)
        if fails:
            self.memory.abandon(rows)
            return
        self.memory.commit(step.rows)
        for row, got in zip(rows, logits, strict=True):
            self.expected[row.seq_id] += row.tokens.tolist()
            assert (got == self.hash_of(self.expected[row.seq_id])).all()

    def hash_of(self, tokens: list[int]) -> np.ndarray:
        sizes = MemorySizes(n_seq_max=1, n_live=6)
        memory = HybridMemory(self.model.new_store(sizes.store_spec("f32")), sizes)
        row = memory.plan(0, np.array(tokens, np.int32), 1)
        return self.model.forward(Step((row,)), memory.store)[0]

    @rule(seq_id=sequences, n=st.integers(1, 4))
    def roll_back(self, seq_id: int, n: int) -> None:
        length = len(self.expected[seq_id])
        if n < length and self.memory.seq_rm(seq_id, length - n):
            del self.expected[seq_id][-n:]

    @rule(source=sequences, into=sequences)
    def copy(self, source: int, into: int) -> None:
        self.memory.seq_cp(source, into)
        self.expected[into] = list(self.expected[source])

    @rule(seq_id=sequences)
    def clear(self, seq_id: int) -> None:
        self.memory.seq_clear(seq_id)
        self.expected[seq_id] = []

    @rule(seq_id=sequences)
    def take_snapshot(self, seq_id: int) -> None:
        if self.expected[seq_id] and len(self.snapshots) < 4:
            snapshot = self.memory.snapshot(seq_id)
            self.snapshots.append((snapshot, list(self.expected[seq_id])))

    @precondition(lambda self: self.snapshots)
    @rule(seq_id=sequences, i=st.integers(0, 3), keep=st.booleans())
    def restore(self, seq_id: int, i: int, keep: bool) -> None:
        snapshot, tokens = self.snapshots[i % len(self.snapshots)]
        try:
            self.memory.restore(seq_id, snapshot)
        except KVExhausted:
            return
        self.expected[seq_id] = list(tokens)
        if not keep:
            self.snapshots.remove((snapshot, tokens))
            self.memory.release(snapshot)

    @rule(source=sequences, into=sequences)
    def pass_through_a_file(self, source: int, into: int) -> None:
        raw = pack(self.memory.save(source, self.expected[source]), LAYOUT)
        try:
            self.memory.load(into, unpack(raw, LAYOUT))
        except KVExhausted:
            return
        self.expected[into] = list(self.expected[source])

    @invariant()
    def counts_agree(self) -> None:
        self.memory.check()
        for seq_id, tokens in enumerate(self.expected):
            assert self.memory.n_tokens(seq_id) == len(tokens)

    def teardown(self) -> None:
        for snapshot, _ in self.snapshots:
            self.memory.release(snapshot)
        self.memory.clear()
        assert self.memory.pool.n_used == 0 and not self.memory.store.cells


MemoryMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
TestMemory = MemoryMachine.TestCase
