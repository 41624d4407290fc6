"""KV blocks: which block holds which positions of which sequence, and who else refers to it.

A block is referred to by *sequences* (a step may append to it) and by *holds* (checkpoints and the
prompt cache, read only). Full blocks never change while shared. A tail block may be shared too:
``filled`` says how many of its cells somebody relies on, so the first to append writes in place and
whoever comes from further back gets a copy. Reserving moves no committed length: an abandoned step
leaves the sequence as it was.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gguf_hybrid.step import BLOCK, Ids


class KVExhausted(Exception):
    """No block is left for a sequence. Nothing has changed; the engine makes room or fails the
    request, so this never reaches a person."""


def n_blocks_for(n_tokens: int) -> int:
    """Blocks that ``n_tokens`` positions need."""
    return -(-n_tokens // BLOCK)


class BlockPool:
    """Reference counts of blocks 0 ... n_blocks - 1; low ids are used first.

    At most ``n_live`` blocks may be referred to by sequences; the rest is for holds alone.
    """

    def __init__(self, n_blocks: int, n_live: int, on_free: Callable[[int], None]) -> None:
        self.n_blocks = n_blocks
        self.n_live = n_live
        self.live: Counter[int] = Counter()
        self.held: Counter[int] = Counter()
        self.filled: dict[int, int] = {}
        self._on_free = on_free
        self._free: list[int] = []
        self._n_touched = 0

    @property
    def n_used(self) -> int:
        """Blocks referred to by anybody."""
        return len(self.filled)

    @property
    def n_live_used(self) -> int:
        """Blocks referred to by sequences."""
        return len(self.live)

    @property
    def n_held_only(self) -> int:
        """Blocks that only checkpoints and the prompt cache keep alive."""
        return self.n_used - self.n_live_used

    def can_take(self, n_live: int, n_new: int) -> bool:
        """Whether sequences may get ``n_live`` blocks more, ``n_new`` of them taken from free."""
        return self.n_live_used + n_live <= self.n_live and self.n_used + n_new <= self.n_blocks

    def take(self, refs: Counter[int], filled: int = 0) -> int:
        """A free block with one reference; ``refs`` is ``live`` or ``held``."""
        assert self.n_used < self.n_blocks
        if self._free:
            block = heapq.heappop(self._free)
        else:
            block, self._n_touched = self._n_touched, self._n_touched + 1
        refs[block] = 1
        self.filled[block] = filled
        return block

    def n_refs(self, block: int) -> int:
        return self.live.get(block, 0) + self.held.get(block, 0)

    def share(self, blocks: Iterable[int], refs: Counter[int]) -> None:
        """One reference more to each block; ``refs`` is ``live`` or ``held``."""
        for block in blocks:
            assert block in self.filled, f"block {block} is free"
            refs[block] += 1

    def drop(self, blocks: Iterable[int], refs: Counter[int]) -> None:
        """One reference less; a block nobody refers to is free again."""
        for block in blocks:
            assert refs[block] > 0, f"block {block} dropped once too often"
            refs[block] -= 1
            if not refs[block]:
                del refs[block]
            if not self.n_refs(block):
                del self.filled[block]
                heapq.heappush(self._free, block)
                self._on_free(block)


@dataclass(slots=True)
class BlockTable:
    """The blocks of one sequence; ``length`` positions are committed."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0


class KVMemory:
    """The block tables of ``n_seq_max`` sequences over one pool."""

    def __init__(
        self, n_seq_max: int, pool: BlockPool, copy_block: Callable[[int, int], None]
    ) -> None:
        self.pool = pool
        self.tables = [BlockTable() for _ in range(n_seq_max)]
        self._copy_block = copy_block

    def length(self, seq_id: int) -> int:
        return self.tables[seq_id].length

    def reserve(self, seq_id: int, n_tokens: int) -> Ids:
        """Make the next ``n_tokens`` positions writable.

        Returns int32 block ids covering positions 0 ... length + n_tokens - 1. Raises KVExhausted,
        having changed nothing.
        """
        table = self.tables[seq_id]
        end = table.length + n_tokens
        n_new = n_blocks_for(end) - len(table.blocks)
        tail = self._shared_tail(table)
        alone = tail is not None and self.pool.live[tail] == 1
        n_copies = int(tail is not None)
        if not self.pool.can_take(n_new + n_copies - alone, n_new + n_copies):
            raise KVExhausted(f"sequence {seq_id} needs {n_new + n_copies} KV blocks")
        if tail is not None:
            self._unshare_tail(table, tail)
        table.blocks.extend(self.pool.take(self.pool.live) for _ in range(n_new))
        for index in range(table.length // BLOCK, len(table.blocks)):
            self.pool.filled[table.blocks[index]] = min(BLOCK, end - index * BLOCK)
        return np.array(table.blocks, dtype=np.int32)

    def _shared_tail(self, table: BlockTable) -> int | None:
        """The partly filled last block, if somebody else relies on cells still to be written."""
        offset = table.length % BLOCK
        if not offset:
            return None
        tail = table.blocks[-1]
        others = self.pool.n_refs(tail) > 1
        return tail if others and self.pool.filled[tail] != offset else None

    def _unshare_tail(self, table: BlockTable, tail: int) -> None:
        copy = self.pool.take(self.pool.live, table.length % BLOCK)
        self._copy_block(tail, copy)
        table.blocks[-1] = copy
        self.pool.drop([tail], self.pool.live)

    def commit(self, seq_id: int, n_tokens: int) -> None:
        table = self.tables[seq_id]
        table.length += n_tokens
        assert n_blocks_for(table.length) <= len(table.blocks)

    def cut(self, seq_id: int, length: int) -> None:
        """Keep the first ``length`` positions; also gives back what was reserved beyond them."""
        table = self.tables[seq_id]
        assert length <= table.length
        table.length = length
        n_keep = n_blocks_for(length)
        dropped = table.blocks[n_keep:]
        del table.blocks[n_keep:]
        self.pool.drop(dropped, self.pool.live)

    def abandon(self, seq_id: int) -> None:
        self.cut(seq_id, self.length(seq_id))

    def hold(self, seq_id: int) -> tuple[int, ...]:
        """Read-only references to the committed blocks of a sequence; end with ``release``."""
        table = self.tables[seq_id]
        blocks = tuple(table.blocks[: n_blocks_for(table.length)])
        self.pool.share(blocks, self.pool.held)
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        self.pool.drop(blocks, self.pool.held)

    def adopt(self, seq_id: int, blocks: Sequence[int], length: int) -> None:
        """The sequence becomes ``length`` positions in ``blocks``, shared with whoever has them.

        Raises KVExhausted, having changed nothing.
        """
        old = self.tables[seq_id].blocks
        gained = sum(1 for block in blocks if block not in self.pool.live)
        lost = sum(1 for block in old if self.pool.live[block] == 1 and block not in blocks)
        if not self.pool.can_take(gained - lost, 0):
            raise KVExhausted(f"sequence {seq_id} needs {gained} KV blocks")
        self.pool.share(blocks, self.pool.live)
        self.pool.drop(old, self.pool.live)
        self.tables[seq_id] = BlockTable(list(blocks), length)

    def can_replace(self, seq_id: int, n_live: int, n_new: int) -> bool:
        """Whether, once the sequence is cleared, it may get ``n_live`` of ``n_new`` free blocks."""
        old = self.tables[seq_id].blocks
        n_lost = sum(1 for block in old if self.pool.live[block] == 1)
        n_freed = sum(1 for block in old if self.pool.n_refs(block) == 1)
        return self.pool.can_take(n_live - n_lost, n_new - n_freed)

    def copy(self, source: int, target: int) -> None:
        """``target`` becomes equal to ``source``; every block is shared."""
        table = self.tables[source]
        self.adopt(target, table.blocks[: n_blocks_for(table.length)], table.length)

    def clear(self, seq_id: int) -> None:
        self.cut(seq_id, 0)

    def check(self, holds: Iterable[Sequence[int]]) -> None:
        """Recount every reference; ``holds`` are the block lists now held."""
        live = Counter(block for table in self.tables for block in table.blocks)
        held = Counter(block for blocks in holds for block in blocks)
        assert live == self.pool.live, "references of sequences are miscounted"
        assert held == self.pool.held, "references of holds are miscounted"
        assert live.keys() | held.keys() == self.pool.filled.keys(), "a block leaks"
        assert len(live) <= self.pool.n_live and self.pool.n_used <= self.pool.n_blocks
        for table in self.tables:
            assert n_blocks_for(table.length) <= len(table.blocks)
            for index in range(n_blocks_for(table.length)):
                needed = min(BLOCK, table.length - index * BLOCK)
                assert needed <= self.pool.filled[table.blocks[index]]
