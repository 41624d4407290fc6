"""One frozen description of a forward pass: all that an operation knows of scheduling.

A step is a list of rows; a row is a run of consecutive tokens of one sequence. It reads one row of
the recurrent state pool and writes others, so until a commit flips an index nothing has happened:

    state pool      [ r0 | r1 | r2 | ... ]        n_seq_max * (1 + n_rs_seq) rows per layer
    Row             state_read = r0, state_write = (r1,)     r0 stays as it is
    commit          the sequence's current row becomes r1

The KV cache is read and written through ``blocks``: position ``p`` lives in block
``blocks[p // BLOCK]`` at offset ``p % BLOCK``. Cells at or beyond the committed length are scratch.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

BLOCK = 256
"""Tokens per KV block."""

CHUNK = 64
"""Tokens per chunk of the parallel delta rule; chunks start at absolute multiples of it."""

ZERO_STATE = -1
"""``Row.state_read`` of a sequence that has not absorbed a token: an all-zero state."""


@dataclass(frozen=True, slots=True)
class Row:
    """Consecutive tokens of one sequence.

    tokens       int32 [n], n >= 1
    start        position of ``tokens[0]``
    state_read   pool row with the state after position ``start - 1``, or ``ZERO_STATE``
    state_write  pool rows for the state after the last token, the last but one, ...;
                 1 <= len(state_write) <= n; none of them is read by any row of the step
    blocks       int32 KV block ids, covering positions 0 .. start + n - 1
    n_logits     how many trailing tokens want logits (0 ... n)
    is_decode    the row is one token that was sampled. A backend may compute such rows together and
                 in another arithmetic than prompts, which a prompt's last piece of one token is not
    """

    seq_id: int
    start: int
    tokens: Ids
    state_read: int
    state_write: tuple[int, ...]
    blocks: Ids
    n_logits: int
    is_decode: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True)
class Step:
    """The rows of one forward pass, in order. Logits come out in the same order."""

    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        reads = {row.state_read for row in self.rows}
        writes = [r for row in self.rows for r in row.state_write]
        assert len(writes) == len(set(writes)), "a state row is written twice"
        assert reads.isdisjoint(writes), "a state row is read and written in one step"
        assert all(len(row) == 1 for row in self.rows if row.is_decode), "one token is decoded"

    @cached_property
    def tokens(self) -> Ids:
        """All token ids, int32 [n_tokens]."""
        return np.concatenate([row.tokens for row in self.rows])

    @cached_property
    def positions(self) -> Ids:
        """Position of each token, int32 [n_tokens]."""
        spans = [np.arange(row.start, row.end, dtype=np.int32) for row in self.rows]
        return np.concatenate(spans)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Index of each row's first token in ``tokens``, and the total at the end."""
        return (0, *np.cumsum([len(row) for row in self.rows]).tolist())

    @property
    def n_tokens(self) -> int:
        return self.offsets[-1]

    @cached_property
    def logit_index(self) -> Ids:
        """Index in ``tokens`` of each token that wants logits, int32 [n_logits]."""
        ends = self.offsets[1:]
        wanted = [
            np.arange(end - row.n_logits, end, dtype=np.int32)
            for end, row in zip(ends, self.rows, strict=True)
        ]
        return np.concatenate(wanted)
