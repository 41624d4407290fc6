"""State rows: a small ring of ``1 + n_rs_seq`` pool rows per sequence.

A recurrent state cannot be cut, so the only way back is a row that still holds the older state. A
step reads the current row and writes others; a commit moves the index:

    ring of sequence s       [ r0: state at 9 | r1: state at 8 ]        position 9
    plan of one token        reads r0, writes r1                        r1 is scratch now
    commit                   [ r0: state at 9 | r1: state at 10 ]       position 10
    rollback to 9            r0 is current again

A fresh sequence reads ``ZERO_STATE``, never whatever its rows hold from before.
"""

from dataclasses import dataclass, field

from gguf_hybrid.step import ZERO_STATE


@dataclass(slots=True)
class Ring:
    """``states`` are (position, row) with the newest first; a position is a count of tokens."""

    rows: tuple[int, ...]
    states: list[tuple[int, int]] = field(default_factory=list)

    @property
    def position(self) -> int:
        return self.states[0][0] if self.states else 0

    @property
    def row(self) -> int:
        return self.states[0][1] if self.states else ZERO_STATE


class RecurrentMemory:
    """The rows of ``n_seq_max`` sequences."""

    def __init__(self, n_seq_max: int, n_rs_seq: int) -> None:
        assert n_rs_seq >= 1, "without a second row a failed step could not be taken back"
        size = 1 + n_rs_seq
        self.n_rs_seq = n_rs_seq
        self.n_rows = n_seq_max * size
        self._rings = [Ring(tuple(range(s * size, (s + 1) * size))) for s in range(n_seq_max)]

    def position(self, seq_id: int) -> int:
        """Tokens absorbed by the current state."""
        return self._rings[seq_id].position

    def row(self, seq_id: int) -> int:
        """Pool row of the current state, or ``ZERO_STATE``."""
        return self._rings[seq_id].row

    def plan(self, seq_id: int, n_tokens: int) -> tuple[int, tuple[int, ...]]:
        """Rows (read, written) by a step of ``n_tokens``.

        The step overwrites unused rows first, then the oldest states: those are forgotten here,
        as a step that is abandoned later may have written them already.
        """
        ring = self._rings[seq_id]
        n_writes = min(n_tokens, self.n_rs_seq)
        kept = {row for _, row in ring.states}
        unused = [row for row in ring.rows if row not in kept]
        oldest = [row for _, row in reversed(ring.states[1:])]
        written = tuple((unused + oldest)[:n_writes])
        ring.states = [state for state in ring.states if state[1] not in written]
        return ring.row, written

    def commit(self, seq_id: int, n_tokens: int, written: tuple[int, ...]) -> None:
        """The rows of ``plan`` now hold the states after the last token, the last but one, ..."""
        ring = self._rings[seq_id]
        end = ring.position + n_tokens
        ring.states[:0] = [(end - age, row) for age, row in enumerate(written)]

    def can_roll_back(self, seq_id: int, position: int) -> bool:
        """Whether a row still holds the state at ``position``; the zero state always does."""
        states = self._rings[seq_id].states
        return position == 0 or any(at == position for at, _ in states)

    def roll_back(self, seq_id: int, position: int) -> None:
        assert self.can_roll_back(seq_id, position)
        ring = self._rings[seq_id]
        ring.states = [state for state in ring.states if state[0] <= position]
        if position == 0:
            ring.states = []

    def place(self, seq_id: int, position: int) -> int:
        """Forget all states; returns the row into which the state at ``position`` is to be put."""
        ring = self._rings[seq_id]
        ring.states = [(position, ring.rows[0])]
        return ring.rows[0]

    def clear(self, seq_id: int) -> None:
        self._rings[seq_id].states = []

    def check(self) -> None:
        """Every state lies in a row of its own sequence, each row used once, newest first."""
        for ring in self._rings:
            rows = [row for _, row in ring.states]
            positions = [at for at, _ in ring.states]
            assert len(rows) == len(set(rows)) and set(rows) <= set(ring.rows)
            assert positions == sorted(set(positions), reverse=True)
            assert not positions or positions[-1] > 0
