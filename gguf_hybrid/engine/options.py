"""Settings of an engine; names and defaults are llama-server's where it has them."""

import os
from dataclasses import dataclass, field

from gguf_hybrid.memory.hybrid import MemorySizes
from gguf_hybrid.memory.sequence_file import SequenceFormat
from gguf_hybrid.step import CHUNK

from .limits import Limits
from .scheduler import Pace

MIB = 1 << 20


@dataclass(frozen=True)
class EngineOptions:
    """What the command line decides about an engine.

    layout                what a saved sequence must match: model and cache type
    cache_ram_nbytes      budget of checkpoints and parked conversations; 0 none, None no limit
    ctx_checkpoints       checkpoints per conversation, 0 = none
    checkpoint_min_step   a long prompt gets a checkpoint every so many tokens
    cache_idle_slots      unified: a new task parks all idle slots
    slots_debug           ``/slots`` shows texts
    """

    limits: Limits
    layout: SequenceFormat
    eog_ids: frozenset[int]
    n_ubatch: int = 512
    n_rs_seq: int = 1
    slot_prompt_similarity: float = 0.1
    cache_ram_nbytes: int | None = 8192 * MIB
    ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192
    cache_idle_slots: bool = True
    slots_debug: bool = False
    pace: Pace = field(default_factory=Pace)

    @property
    def checkpoint_step(self) -> int:
        """``checkpoint_min_step`` as a multiple of ``CHUNK``, so that it never moves a cut; 0 for
        no checkpoints but the request's own."""
        return -(-self.checkpoint_min_step // CHUNK) * CHUNK if self.ctx_checkpoints else 0

    @property
    def parks_idle_slots(self) -> bool:
        return self.cache_idle_slots and self.limits.kv_unified and self.cache_ram_nbytes != 0

    def memory_sizes(self) -> MemorySizes:
        """Live blocks for the slots, cached ones as far as the budget, or the machine, allows."""
        budget = physical_nbytes()
        if self.cache_ram_nbytes is not None:
            budget = min(budget, self.cache_ram_nbytes)
        n_cached = budget // max(self.layout.block_nbytes, 1)
        limits = self.limits
        return MemorySizes(limits.n_slots, limits.n_blocks, n_cached, self.n_rs_seq)


def physical_nbytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
