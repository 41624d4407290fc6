"""The laws of serving many at once, proved on the model itself, on random tokens.

Each law compares logits bit by bit; where stock GPU kernels do not promise that, by how far they
differ. ``Sequences`` drives model and memory exactly as the engine does, without a scheduler.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gguf_hybrid.backend.base import Backend
from gguf_hybrid.memory.hybrid import HybridMemory, MemorySizes
from gguf_hybrid.memory.kv import n_blocks_for
from gguf_hybrid.memory.sequence_file import SequenceFormat, pack, unpack
from gguf_hybrid.memory.store import Floats
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.step import CHUNK, Step

from .doctor_report import Finding, judged

LENGTHS = (5, CHUNK + 1, 2 * CHUNK, 3)
LONG = 3 * CHUNK + 1
N_MORE = 3
N_CTX = 512
GPU_TOLERANCE = 0.05
"""In standard deviations of the logits, for kernels that do not promise equal bits."""

Work = tuple[int, list[int]]
Law = Callable[[list[list[Floats]]], tuple[list[Floats], list[Floats]]]


class Sequences:
    """``n`` sequences of a model, fed step by step."""

    def __init__(self, model: Qwen35, n: int, kv_type: str = "f16") -> None:
        sizes = MemorySizes(n, n * n_blocks_for(N_CTX))
        self.model = model
        self.memory = HybridMemory(model.new_store(sizes.store_spec(kv_type)), sizes)

    def feed(self, *work: Work, decoding: bool = False) -> list[Floats]:
        """One pass; float32 [n_vocab] after the last token of each (sequence, tokens), which is a
        new one when ``decoding``, and the end of a piece of its prompt otherwise."""
        rows = [
            self.memory.plan(seq, np.array(tokens, np.int32), 1, decoding) for seq, tokens in work
        ]
        step = Step(tuple(rows))
        logits = self.model.forward(step, self.memory.store)
        self.memory.commit(step.rows)
        return list(logits)


class Laws:
    """The laws of one model; ``findings`` proves them one after the other."""

    def __init__(self, model: Qwen35, note: str) -> None:
        rng = np.random.default_rng(5)
        n_vocab = model.config.n_vocab
        self._model = model
        self._note = note
        self._prompts = [rng.integers(0, n_vocab, n).tolist() for n in LENGTHS]
        self._more = rng.integers(0, n_vocab, (len(LENGTHS), N_MORE)).tolist()
        self._long = rng.integers(0, n_vocab, LONG).tolist()
        self._bits_promised = promises_bits(model.backend)

    def findings(self) -> Iterator[Finding]:
        alone = [self._alone(i) for i in range(len(LENGTHS))]
        laws: tuple[tuple[str, Law], ...] = (
            ("batched = alone", self._batched),
            ("chunked = whole", self._chunked),
            ("restored = uninterrupted", self._restored),
            ("slot reuse = fresh", self._reused),
        )
        for name, law in laws:
            yield self._judge(name, *law(alone))

    def _alone(self, i: int) -> list[Floats]:
        """Logits of prompt i and of its further tokens, with nobody else in the model."""
        sequences = Sequences(self._model, 1)
        read = sequences.feed((0, self._prompts[i]))
        return read + [sequences.feed((0, [t]), decoding=True)[0] for t in self._more[i]]

    def _batched(self, alone: list[list[Floats]]) -> tuple[list[Floats], list[Floats]]:
        """All prompts in one pass, then all further tokens together."""
        sequences = Sequences(self._model, len(LENGTHS))
        got = [[logits] for logits in sequences.feed(*enumerate(self._prompts))]
        for t in range(N_MORE):
            work = [(i, [more[t]]) for i, more in enumerate(self._more)]
            for mine, logits in zip(got, sequences.feed(*work, decoding=True), strict=True):
                mine.append(logits)
        return _flat(got), _flat(alone)

    def _chunked(self, alone: list[list[Floats]]) -> tuple[list[Floats], list[Floats]]:
        """A prompt read in two and in three pieces against one."""
        read = [self._read(cuts) for cuts in ((), (2 * CHUNK,), (CHUNK, 3 * CHUNK))]
        return read[1:], [read[0]] * 2

    def _read(self, cuts: Sequence[int]) -> Floats:
        sequences = Sequences(self._model, 1)
        bounds = (0, *cuts, LONG)
        pieces = [self._long[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
        return [sequences.feed((0, piece))[0] for piece in pieces][-1]

    def _restored(self, alone: list[list[Floats]]) -> tuple[list[Floats], list[Floats]]:
        """Saved as a slot file and loaded into another slot, where it goes on."""
        sequences = Sequences(self._model, 2)
        layout = SequenceFormat.of(self._model.config, "f16", "doctor")
        sequences.feed((0, self._prompts[1]))
        saved = unpack(pack(sequences.memory.save(0, self._prompts[1]), layout), layout)
        sequences.memory.load(1, saved)
        got = [sequences.feed((1, [token]), decoding=True)[0] for token in self._more[1]]
        return got, alone[1][1:]

    def _reused(self, alone: list[list[Floats]]) -> tuple[list[Floats], list[Floats]]:
        """A slot that held another sequence before."""
        sequences = Sequences(self._model, 1)
        sequences.feed((0, self._prompts[2]))
        sequences.memory.seq_clear(0)
        return [sequences.feed((0, self._prompts[1]))[0]], alone[1][:1]

    def _judge(self, name: str, got: list[Floats], expected: list[Floats]) -> Finding:
        a, b = np.stack(got), np.stack(expected)
        if np.array_equal(a, b):
            return judged(name, True, f"{self._note}, {len(a)} rows of logits equal bit by bit")
        deviation = float(np.abs(a - b).max() / b.std())
        detail = f"{self._note}, logits differ by {deviation:.1e} of their standard deviation"
        return judged(name, not self._bits_promised and deviation <= GPU_TOLERANCE, detail)


def promises_bits(backend: Backend) -> bool:
    """Whether a row's logits are the same bits whatever runs beside it; MLX's own GPU kernels
    choose their order of addition by the size of the batch."""
    return not backend.name.startswith("mlx (gpu")


def _flat(rows: list[list[Floats]]) -> list[Floats]:
    return [logits for row in rows for logits in row]
