"""Checkpoints and parked conversations: snapshots of sequences, found by their exact tokens.

One kind of entry serves both. An entry belongs to no slot: a conversation may come back into any
of them, and two that begin alike share what they have in common. An entry is reused whole or not
at all, since a recurrent state cannot be cut.

One budget in bytes over states and over the KV blocks that only entries keep alive. The least
useful entry goes first: the one whose loss costs the fewest tokens to re-read (down to the next
shorter entry of the same conversation), weighed down by how long nobody asked for it and by how
far behind the conversation's end it lies.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gguf_hybrid.memory.hybrid import HybridMemory, Snapshot
from gguf_hybrid.step import Ids

logger = logging.getLogger(__name__)

MAX_ENTRIES = 2048
"""Bounds the time of a look-up; only small models come near it before their budget is spent."""

DEPTH = 4000
"""Tokens behind the end of a conversation at which an entry counts half. Of the weights tried on
simulated agents (20 turns, thinking dropped, four conversations over two slots, room for 12 or 24
states) this re-reads least; plain LRU re-reads three to four times as much."""


@dataclass(slots=True, eq=False)
class Entry:
    """A snapshot and the tokens it has absorbed, int32 [n_tokens].

    ``base`` is the longest entry that is a prefix of this one; ``used`` the number of the request
    that last began with these tokens, ``reach`` how many tokens it had.
    """

    tokens: Ids
    snapshot: Snapshot
    base: "Entry | None"
    used: int
    reach: int

    def __len__(self) -> int:
        return len(self.tokens)

    def begins(self, tokens: Ids) -> bool:
        """Whether ``tokens`` start with those of the entry."""
        n = len(self)
        if n > len(tokens) or self.tokens[n - 1] != tokens[n - 1]:
            return False
        return bool((tokens[:n] == self.tokens).all())

    @property
    def gain(self) -> int:
        """Tokens that would be re-read without this entry."""
        return len(self) - (len(self.base) if self.base else 0)


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What ``/metrics`` shows of the cache."""

    n_entries: int
    n_bytes: int
    budget: int | None


class PromptCache:
    """Entries of one memory. ``budget`` in bytes: 0 = no entries, None = no limit.

    ``max_chain`` bounds the checkpoints of one conversation (``--ctx-checkpoints``).
    """

    def __init__(self, memory: HybridMemory, budget: int | None, max_chain: int) -> None:
        self._memory = memory
        self._budget = budget
        self._max_chain = max_chain
        self._entries: list[Entry] = []
        self._clock = 0
        spec = memory.store.spec
        self._state_nbytes = memory.store.state_nbytes // spec.n_state_rows

    @property
    def stats(self) -> CacheStats:
        return CacheStats(len(self._entries), self._memory.snapshots_nbytes(), self._budget)

    def find(self, prompt: Sequence[int]) -> Entry | None:
        """The longest entry that leaves at least one token of the prompt to read.

        Counts as a use of every entry the prompt begins with.
        """
        self._clock += 1
        chain = self._chain(np.array(prompt, dtype=np.int32))
        for entry in chain:
            entry.used, entry.reach = self._clock, len(prompt)
        return max((e for e in chain if len(e) < len(prompt)), key=len, default=None)

    def n_common(self, prompt: Sequence[int]) -> int:
        """Leading tokens of the prompt that some entry has too."""
        ids = np.array(prompt, dtype=np.int32)
        return max((_n_equal(entry.tokens, ids) for entry in self._entries), default=0)

    def prefixes(self, tokens: Sequence[int]) -> list[Snapshot]:
        """Snapshots of true prefixes of ``tokens``, growing."""
        chain = self._chain(np.array(tokens, dtype=np.int32))
        return [e.snapshot for e in sorted(chain, key=len) if len(e) < len(tokens)]

    def checkpoint(self, seq_id: int, tokens: Sequence[int]) -> bool:
        """Keep a sequence, which has absorbed ``tokens``, as a checkpoint of its conversation."""
        return self._max_chain > 0 and self._keep(seq_id, tokens, self._max_chain)

    def park(self, seq_id: int, tokens: Sequence[int]) -> bool:
        """Keep a sequence that is about to leave its slot; False if there is no room for it."""
        return self._keep(seq_id, tokens, self._max_chain + 1)

    def adopt(self, snapshot: Snapshot, tokens: Sequence[int]) -> None:
        """Take over a snapshot that came from a file."""
        ids = np.array(tokens, dtype=np.int32)
        if self._budget == 0 or any(len(e) == len(ids) for e in self._chain(ids)):
            self._memory.release(snapshot)
            return
        self._insert(ids, snapshot)
        self.trim()

    def forget(self, tokens: Sequence[int]) -> None:
        """Drop every entry that ``tokens`` begin with."""
        for entry in self._chain(np.array(tokens, dtype=np.int32)):
            self._drop(entry)

    def trim(self) -> None:
        """Drop entries until the budget holds. To be called when sequences let go of blocks."""
        self._make_room(0)

    def drop_one(self) -> bool:
        """Drop the least useful entry; False if there is none."""
        if self._entries:
            self._drop(min(self._entries, key=self._usefulness))
            return True
        return False

    def _keep(self, seq_id: int, tokens: Sequence[int], max_chain: int) -> bool:
        ids = np.array(tokens, dtype=np.int32)
        chain = self._chain(ids)
        for entry in chain:
            entry.used, entry.reach = self._clock, len(ids)
        if any(len(entry) == len(ids) for entry in chain):
            return True
        if len(chain) >= max_chain > 0:
            self._drop(min(chain, key=self._usefulness))
        if not self._make_room(self._state_nbytes):
            return False
        try:
            snapshot = self._memory.snapshot(seq_id)
        except MemoryError:
            logger.warning("no memory for a checkpoint of %d tokens", len(ids))
            return False
        self._insert(ids, snapshot)
        return True

    def _insert(self, ids: Ids, snapshot: Snapshot) -> None:
        if len(self._entries) >= MAX_ENTRIES:
            self.drop_one()
        base = max(self._chain(ids), key=len, default=None)
        entry = Entry(ids, snapshot, base, self._clock, len(ids))
        for other in self._entries:
            if other.base is base and len(other) > len(entry) and entry.begins(other.tokens):
                other.base = entry
        self._entries.append(entry)

    def _drop(self, entry: Entry) -> None:
        self._entries.remove(entry)
        for other in self._entries:
            if other.base is entry:
                other.base = entry.base
        self._memory.release(entry.snapshot)

    def _make_room(self, n_bytes: int) -> bool:
        """Whether ``n_bytes`` more fit, after dropping what is less useful."""
        if self._budget is None:
            return True
        if n_bytes > self._budget:
            return False
        while self._memory.snapshots_nbytes() + n_bytes > self._budget:
            if not self.drop_one():
                return False
        return True

    def _chain(self, tokens: Ids) -> list[Entry]:
        return [entry for entry in self._entries if entry.begins(tokens)]

    def _usefulness(self, entry: Entry) -> float:
        age = self._clock - entry.used
        depth = entry.reach - len(entry)
        return entry.gain / ((1 + age) * (DEPTH + depth))


def _n_equal(a: Ids, b: Ids) -> int:
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
