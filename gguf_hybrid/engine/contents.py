"""What the slots hold: continued, brought back from the cache, parked there, or cleared.

Keeps ``Slot.tokens``, the memory and the cache in agreement; nothing else touches more than one of
them. Running out of KV blocks empties idle slots, longest idle first.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gguf_hybrid.memory.hybrid import HybridMemory, KVExhausted, Snapshot
from gguf_hybrid.memory.sequence_file import SavedSequence
from gguf_hybrid.step import Row

from .admission import common_prefix, longest_idle
from .cache import PromptCache
from .request import Request
from .scheduler import Work
from .slot import Slot

logger = logging.getLogger(__name__)

N_SAVED_CHECKPOINTS = 3
"""Earlier states in a slot file; with a large state they are most of its bytes."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """Where the beginning of a prompt came from.

    n_restored  tokens from the cache
    n_known     leading tokens of the prompt that the slot or the cache had seen, state or not
    """

    n_restored: int = 0
    n_known: int = 0


class Contents:
    """The sequences of all slots, and the cache they share."""

    def __init__(self, memory: HybridMemory, cache: PromptCache, slots: Sequence[Slot]) -> None:
        self.memory = memory
        self.cache = cache
        self._slots = slots

    def reuse(self, slot: Slot, request: Request) -> Reuse:
        """Bring a slot to the longest prefix of the prompt that is known: what it holds already,
        an entry of the cache, or nothing. At least one token is left to read."""
        if not request.cache_prompt:
            self.displace(slot)
            return Reuse()
        prompt = list(request.prompt)
        n_live = common_prefix(slot.tokens, prompt)
        n_known = max(n_live, self.cache.n_common(prompt))
        if 0 < n_live == len(slot.tokens) < len(prompt):
            entry = self.cache.find(prompt)
            if entry is None or len(entry) <= n_live:
                self.cache.checkpoint(slot.id, slot.tokens)
                return Reuse(n_known=n_known)
        logger.debug("slot %d: updating prompt cache", slot.id)
        self.displace(slot)
        return Reuse(self._restore(slot, prompt), n_known)

    def _restore(self, slot: Slot, prompt: list[int]) -> int:
        """Tokens brought back into an empty slot. Making room may cost cache entries, so each
        attempt looks again."""

        def bring_back() -> None:
            entry = self.cache.find(prompt)
            if entry is not None:
                self.memory.restore(slot.id, entry.snapshot)
                slot.tokens = entry.tokens.tolist()

        try:
            self.with_room(bring_back)
        except MemoryError:
            logger.warning("slot %d: no memory to restore a checkpoint", slot.id)
            self.clear(slot)
        return len(slot.tokens)

    def copy_prompt(self, source: Slot, target: Slot) -> None:
        """``target`` goes on from where ``source`` is."""
        self.memory.seq_cp(source.id, target.id)
        target.copy_prompt(source)

    def displace(self, slot: Slot) -> None:
        """Empty a slot; what it held goes to the cache if there is room."""
        if slot.tokens and slot.is_cacheable:
            self.cache.park(slot.id, slot.tokens)
        self.clear(slot)

    def clear(self, slot: Slot) -> None:
        self.memory.seq_clear(slot.id)
        slot.tokens = []
        self.cache.trim()

    def park_idle(self, except_for: Sequence[Slot]) -> None:
        """``--cache-idle-slots``: idle slots go to the cache and leave the pool to the others."""
        for slot in self._slots:
            parkable = slot.is_idle and slot.tokens and slot.is_cacheable
            if parkable and slot not in except_for and self.cache.park(slot.id, slot.tokens):
                logger.debug("slot %d: __TEST_TAG_CACHE_IDLE_SLOT__", slot.id)
                self.clear(slot)

    def save(self, slot: Slot) -> SavedSequence:
        """What the slot holds, with its latest checkpoints, so that the prompt it began with can
        be answered from the file as well as a longer one."""
        checkpoints = self.cache.prefixes(slot.tokens)[-N_SAVED_CHECKPOINTS:]
        return self.memory.save(slot.id, slot.tokens, checkpoints)

    def load(self, slot: Slot, saved: SavedSequence) -> bool:
        """The slot gets the saved sequence; what it held goes to the cache. False if it is too
        long or no KV block is left, then the slot is as before; out of memory it is empty."""
        snapshots: list[Snapshot] = []
        if len(saved.tokens) >= slot.n_ctx:
            return False
        if slot.tokens and slot.is_cacheable:
            self.cache.park(slot.id, slot.tokens)
        try:
            if not self.with_room(lambda: snapshots.extend(self.memory.load(slot.id, saved)), slot):
                return False
        except MemoryError:
            logger.warning("slot %d: no memory for a saved sequence", slot.id)
            slot.tokens = []
            return False
        slot.tokens = list(saved.tokens)
        slot.is_cacheable = True
        for snapshot in snapshots:
            self.cache.adopt(snapshot, saved.tokens[: snapshot.n_tokens])
        self.cache.trim()
        return True

    def erase(self, slot: Slot) -> int:
        """Forget what the slot holds, its checkpoints included; how many tokens that was."""
        n_tokens = len(slot.tokens)
        self.cache.forget(slot.tokens)
        self.clear(slot)
        return n_tokens

    def reserve(self, work: Work) -> Row | None:
        """Memory for the next row of a slot; None if there is none left."""
        rows: list[Row] = []

        def plan() -> None:
            is_decode = not work.is_prompt
            rows.append(self.memory.plan(work.slot.id, work.tokens, work.n_logits, is_decode))

        return rows[0] if self.with_room(plan) else None

    def with_room(self, action: Callable[[], object], keep: Slot | None = None) -> bool:
        """Run ``action``, emptying idle slots but ``keep`` one by one while no KV block is left."""
        while True:
            try:
                action()
                return True
            except KVExhausted:
                idle = [s for s in self._slots if s.is_idle and s.tokens and s is not keep]
                if not idle:
                    return False
                self.displace(longest_idle(idle)[0])

    def check(self) -> None:
        """Assert that slots and memory agree."""
        self.memory.check()
        for slot in self._slots:
            assert len(slot.tokens) == self.memory.n_tokens(slot.id)
