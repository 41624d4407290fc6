"""Both memories of a sequence, recurrent state and KV, as one: every operation is all or nothing.

Accounting only; the arrays live in the store. A step is planned (``plan`` reserves), run by the
model, then committed or abandoned. The operations carry llama.cpp's names; unlike there, ``seq_rm``
refuses whatever would leave a state that still remembers removed tokens, a removed prefix included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gguf_hybrid.step import Ids, Row

from .kv import BlockPool, KVExhausted, KVMemory, n_blocks_for
from .recurrent import RecurrentMemory
from .sequence_file import SavedSequence, SavedState
from .store import StateSnapshot, Store, StoreSpec

__all__ = ["HybridMemory", "KVExhausted", "MemorySizes", "Snapshot"]


@dataclass(frozen=True, slots=True)
class MemorySizes:
    """How much a memory may hold.

    n_seq_max  sequences that can be computed at once (slots)
    n_live     KV blocks they may refer to together
    n_cached   KV blocks that snapshots may keep alive beyond those
    n_rs_seq   tokens a sequence can be rolled back
    """

    n_seq_max: int
    n_live: int
    n_cached: int = 0
    n_rs_seq: int = 1

    def store_spec(self, kv_type: str) -> StoreSpec:
        """The store behind such a memory."""
        return StoreSpec(self.n_seq_max * (1 + self.n_rs_seq), self.n_blocks, kv_type)

    @property
    def n_blocks(self) -> int:
        """All blocks: one more per sequence, for the copy of a tail that a snapshot keeps."""
        return self.n_live + self.n_cached + self.n_seq_max


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A sequence as it was after ``n_tokens`` tokens: a copy of its state, references to its KV."""

    n_tokens: int
    state: StateSnapshot
    blocks: tuple[int, ...]


class HybridMemory:
    """The sequences 0 ... n_seq_max - 1 of one store."""

    def __init__(self, store: Store, sizes: MemorySizes) -> None:
        self.store = store
        self.sizes = sizes
        self.pool = BlockPool(sizes.n_blocks, sizes.n_live, store.free_block)
        self._kv = KVMemory(sizes.n_seq_max, self.pool, store.copy_block)
        self._recurrent = RecurrentMemory(sizes.n_seq_max, sizes.n_rs_seq)
        self._snapshots: set[Snapshot] = set()
        self._snapshot_states_nbytes = 0

    # -- steps --------------------------------------------------------------------------------

    def plan(self, seq_id: int, tokens: Ids, n_logits: int, is_decode: bool = False) -> Row:
        """Reserve what the next ``tokens`` of a sequence need.

        Raises KVExhausted, having changed nothing. Each row ends in ``commit`` or ``abandon``.
        """
        blocks = self._kv.reserve(seq_id, len(tokens))
        state_read, state_write = self._recurrent.plan(seq_id, len(tokens))
        start = self._kv.length(seq_id)
        return Row(seq_id, start, tokens, state_read, state_write, blocks, n_logits, is_decode)

    def commit(self, rows: Sequence[Row]) -> None:
        """The model has run the rows of a step: their tokens are absorbed."""
        for row in rows:
            self._kv.commit(row.seq_id, len(row))
            self._recurrent.commit(row.seq_id, len(row), row.state_write)

    def abandon(self, rows: Sequence[Row]) -> None:
        """The step did not run or failed: every sequence is as long as before."""
        for row in rows:
            self._kv.abandon(row.seq_id)

    # -- sequences ----------------------------------------------------------------------------

    def n_tokens(self, seq_id: int) -> int:
        """Tokens absorbed by the sequence."""
        return self._kv.length(seq_id)

    def state_row(self, seq_id: int) -> int:
        """Pool row of the sequence's current state, or ``ZERO_STATE``."""
        return self._recurrent.row(seq_id)

    def blocks(self, seq_id: int) -> tuple[int, ...]:
        """KV blocks of the sequence, in order of positions."""
        return tuple(self._kv.tables[seq_id].blocks)

    def seq_pos_max(self, seq_id: int) -> int:
        """Last position of the sequence, -1 if it is empty."""
        return self.n_tokens(seq_id) - 1

    def seq_pos_min(self, seq_id: int) -> int:
        """First position both memories can continue from: that of the state, so the last one."""
        return self.n_tokens(seq_id) - 1

    def seq_rm(self, seq_id: int, p0: int = 0, p1: int = -1) -> bool:
        """Remove positions p0 ... p1 - 1 (negative: from the start, to the end).

        False, with nothing changed, when the state at ``p0`` is in no row any more or when
        positions behind the removed ones would stay.
        """
        end = self.n_tokens(seq_id)
        first = max(p0, 0)
        last = end if p1 < 0 else min(p1, end)
        if first >= last:
            return True
        if last < end or not self._recurrent.can_roll_back(seq_id, first):
            return False
        self._recurrent.roll_back(seq_id, first)
        self._kv.cut(seq_id, first)
        return True

    def seq_cp(self, source: int, target: int) -> None:
        """``target`` becomes equal to ``source``: KV blocks shared, the state row copied."""
        if source == target:
            return
        self.seq_clear(target)
        n_tokens = self.n_tokens(source)
        if n_tokens:
            self._kv.copy(source, target)
            row = self._recurrent.place(target, n_tokens)
            self.store.copy_state(self._recurrent.row(source), row)

    def seq_keep(self, seq_id: int) -> None:
        """Clear all other sequences."""
        for other in range(self.sizes.n_seq_max):
            if other != seq_id:
                self.seq_clear(other)

    def seq_clear(self, seq_id: int) -> None:
        self._kv.clear(seq_id)
        self._recurrent.clear(seq_id)

    def clear(self) -> None:
        """Clear all sequences; snapshots stay."""
        for seq_id in range(self.sizes.n_seq_max):
            self.seq_clear(seq_id)

    # -- snapshots ----------------------------------------------------------------------------

    def snapshot(self, seq_id: int) -> Snapshot:
        """A checkpoint of the sequence as it is now; it lives until ``release``."""
        assert self.n_tokens(seq_id), "an empty sequence needs no snapshot"
        state = self.store.snapshot_state(self._recurrent.row(seq_id))
        snapshot = Snapshot(self.n_tokens(seq_id), state, self._kv.hold(seq_id))
        self._snapshots.add(snapshot)
        self._snapshot_states_nbytes += state.nbytes
        return snapshot

    def restore(self, seq_id: int, snapshot: Snapshot) -> None:
        """The sequence becomes what it was at the snapshot, in any slot, any number of times.

        Raises KVExhausted, having changed nothing.
        """
        assert snapshot in self._snapshots, "the snapshot was released"
        self._kv.adopt(seq_id, snapshot.blocks, snapshot.n_tokens)
        row = self._recurrent.place(seq_id, snapshot.n_tokens)
        self.store.restore_state(snapshot.state, row)

    def release(self, snapshot: Snapshot) -> None:
        self._snapshots.remove(snapshot)
        self._snapshot_states_nbytes -= snapshot.state.nbytes
        self._kv.release(snapshot.blocks)

    # -- files --------------------------------------------------------------------------------

    def save(
        self, seq_id: int, tokens: Sequence[int], checkpoints: Sequence[Snapshot] = ()
    ) -> SavedSequence:
        """A copy of a sequence on the host, for ``sequence_file.pack``.

        ``tokens`` are all tokens of the sequence; checkpoints are states of prefixes of it.
        """
        assert len(tokens) == self.n_tokens(seq_id)
        if not tokens:
            return SavedSequence((), (), {})
        live = self.snapshot(seq_id)
        states = tuple(
            SavedState(s.n_tokens, s.blocks, s.state.to_host()) for s in (*checkpoints, live)
        )
        names = {block for state in states for block in state.blocks}
        blocks = {block: self.store.read_block(block) for block in sorted(names)}
        self.release(live)
        return SavedSequence(tuple(tokens), states, blocks)

    def load(self, seq_id: int, saved: SavedSequence) -> list[Snapshot]:
        """The sequence becomes the saved one; its checkpoints are returned as snapshots.

        Raises KVExhausted, having changed nothing; after a MemoryError the sequence is empty.
        """
        blocks = self._blocks_for(seq_id, saved)
        snapshots: list[Snapshot] = []
        try:
            for name, values in saved.blocks.items():
                self.store.write_block(blocks[name], values)
            for state in saved.states:
                table = [blocks[name] for name in state.blocks]
                self._kv.adopt(seq_id, table, state.n_tokens)
                row = self._recurrent.place(seq_id, state.n_tokens)
                self.store.load_state(state.values, row)
                if state is not saved.states[-1]:
                    snapshots.append(self.snapshot(seq_id))
        except MemoryError:
            self.seq_clear(seq_id)
            for snapshot in snapshots:
                self.release(snapshot)
            raise
        finally:
            self.pool.drop(blocks.values(), self.pool.held)
        return snapshots

    def _blocks_for(self, seq_id: int, saved: SavedSequence) -> dict[int, int]:
        """Free blocks, held for the moment; the sequence is empty afterwards."""
        n_live = max((len(state.blocks) for state in saved.states), default=0)
        if not self._kv.can_replace(seq_id, n_live, len(saved.blocks)):
            raise KVExhausted(f"the sequence needs {len(saved.blocks)} KV blocks")
        self.seq_clear(seq_id)
        cells = saved.cells()
        return {name: self.pool.take(self.pool.held, cells[name]) for name in saved.blocks}

    # -- bytes --------------------------------------------------------------------------------

    def snapshots_nbytes(self) -> int:
        """Bytes that exist only because of snapshots: their states, and KV no sequence uses."""
        kv = self.pool.n_held_only * self.store.block_nbytes
        return self._snapshot_states_nbytes + kv

    def nbytes(self) -> int:
        """Bytes of state pool, committed KV and snapshots."""
        pools = self.store.state_nbytes + self.store.kv_nbytes()
        return pools + self._snapshot_states_nbytes

    def check(self) -> None:
        """Recount everything; AssertionError names what is wrong. For tests and idle moments."""
        self._kv.check([snapshot.blocks for snapshot in self._snapshots])
        self._recurrent.check()
        for seq_id in range(self.sizes.n_seq_max):
            assert self._recurrent.position(seq_id) == self.n_tokens(seq_id)
        for snapshot in self._snapshots:
            assert len(snapshot.blocks) == n_blocks_for(snapshot.n_tokens)
        states = sum(snapshot.state.nbytes for snapshot in self._snapshots)
        assert states == self._snapshot_states_nbytes
