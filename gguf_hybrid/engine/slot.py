"""A slot: the life of one sequence, and of the request that works on it.

``tokens`` are exactly the tokens the memory has absorbed, so the token sampled last is not among
them: it is fed by the next step. They stay when a request ends, for the next one to continue.
"""

import enum
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np

from gguf_hybrid.memory.store import Floats
from gguf_hybrid.step import Ids

from .cuts import must_cut
from .pooling import Vectors
from .request import Done, Piece, Request, SlotView, Timings
from .stop import Stop


class Phase(enum.Enum):
    """PROMPT reads its prompt, COPY waits for the first of its group to have read it, MASK has
    logits and waits for its grammar to say what they may become."""

    COPY = enum.auto()
    PROMPT = enum.auto()
    DECODE = enum.auto()
    MASK = enum.auto()


@dataclass(slots=True)
class Job:
    """A request in a slot. Times are those of the engine's clock, in seconds.

    ``followers`` are slots that copy this prompt, ``leader`` the job whose prompt this one copies;
    both only matter until the prompt is read.
    """

    request: Request
    phase: Phase
    started: float
    cuts: tuple[int, ...]
    followers: tuple["Slot", ...] = ()
    leader: "Job | None" = None
    timings: Timings = field(default_factory=Timings)
    n_restored: int = 0
    """Of the reused prompt tokens, those whose state came from a checkpoint."""
    n_reread: int = 0
    """Prompt tokens that were computed before, with no state left to continue from."""
    first_token: float = 0.0
    generated: list[int] = field(default_factory=list)
    vectors: Vectors | None = None
    """What an embedding is made of; None for a completion."""
    mask: Future[None] | None = None
    """The work on the grammar's next mask; None without a grammar."""
    late_logits: Floats | None = None
    """In phase MASK: the logits, float32 [n_vocab], of the token to choose."""
    n_unsent: int = 0
    """Trailing tokens whose text is still held back: those a stop string would swallow."""

    @property
    def n_prompt(self) -> int:
        return len(self.request.prompt)

    def waiting_followers(self) -> list["Slot"]:
        """Slots that still wait to copy this prompt; one may have been cancelled and taken by
        somebody else."""
        return [s for s in self.followers if s.job is not None and s.job.leader is self]

    def note_token(self, token: int, piece: Piece, now: float) -> None:
        if not self.generated:
            self.first_token = now
            self.timings.prompt_ms = 1000 * (now - self.started)
        self.generated.append(token)
        self.timings.predicted_n = len(self.generated)
        self.timings.predicted_ms = max(1000 * (now - self.first_token), 0.001)
        swallowed = piece.stop_word is not None or not piece.text
        self.n_unsent = self.n_unsent + 1 if swallowed else 0


class Slot:
    """Slot ``id`` works on sequence ``id`` of the memory."""

    def __init__(self, id: int, n_ctx: int) -> None:
        self.id = id
        self.n_ctx = n_ctx
        self.tokens: list[int] = []
        self.job: Job | None = None
        self.last_request: Request | None = None
        self.is_cacheable = True
        """Whether others may continue from what the slot holds."""
        self.released = -1
        """When the slot was last released, as a running number; -1 = never used."""

    @property
    def is_idle(self) -> bool:
        return self.job is None

    def begin(
        self, request: Request, now: float, checkpoint_step: int, followers: Sequence["Slot"] = ()
    ) -> Job:
        """Take a request whose prompt this slot reads; the followers will copy it."""
        assert self.job is None
        cuts = must_cut(len(request.prompt), request.boundaries, checkpoint_step)
        vectors = None if request.pooling is None else Vectors(request.pooling)
        self.job = Job(request, Phase.PROMPT, now, cuts, tuple(followers), vectors=vectors)
        return self.job

    def follow(self, leader: Job, request: Request) -> None:
        """Take a request whose prompt another slot reads."""
        assert self.job is None
        self.job = Job(request, Phase.COPY, leader.started, (), leader=leader)
        self.note_owner(request)

    def note_owner(self, request: Request) -> None:
        """From now on the slot holds tokens of this request."""
        self.last_request = request
        self.is_cacheable = request.cache_prompt

    def copy_prompt(self, source: "Slot") -> None:
        """The memory has copied the sequence of ``source``, which has just read its prompt."""
        assert self.job is not None and source.job is not None
        self.tokens = list(source.tokens)
        self.job.phase = Phase.DECODE
        self.job.leader = None
        self.job.timings = replace(source.job.timings)

    def next_prompt_tokens(self, end: int) -> Ids:
        """Prompt tokens from what is absorbed up to ``end``, int32."""
        assert self.job is not None
        return np.array(self.job.request.prompt[len(self.tokens) : end], dtype=np.int32)

    def next_token(self) -> Ids:
        """The token sampled last, int32 [1]."""
        assert self.job is not None
        return np.array(self.job.generated[-1:], dtype=np.int32)

    def is_at_last_token(self) -> bool:
        """Whether the token after those absorbed and the one on its way must be the last."""
        assert self.job is not None
        n_predict, n_generated = self.job.request.n_predict, len(self.job.generated)
        return len(self.tokens) + 2 >= self.n_ctx or 0 <= n_predict <= n_generated + 1

    def release(self, number: int) -> Job:
        """The request has ended; the tokens stay."""
        assert self.job is not None
        job, self.job = self.job, None
        self.released = number
        return job

    def view(self, with_text: bool) -> SlotView:
        """What ``/slots`` shows now; texts only on demand, as they grow with the context."""
        job, request = self.job, self.last_request
        n_decoded = len(job.generated) if job else 0
        n_predict = job.request.n_predict if job else -1
        return SlotView(
            id=self.id,
            n_ctx=self.n_ctx,
            is_processing=job is not None,
            id_task=request.id if request else None,
            n_prompt_tokens=len(self.tokens),
            n_prompt_tokens_processed=job.timings.prompt_n if job else 0,
            n_prompt_tokens_cache=job.timings.cache_n if job else 0,
            n_prompt_tokens_restored=job.n_restored if job else 0,
            n_prompt_tokens_reread=job.n_reread if job else 0,
            n_decoded=n_decoded,
            n_remain=n_predict - n_decoded if n_predict >= 0 else -1,
            has_next_token=job is not None,
            has_new_line=job.request.reader.has_new_line if job else False,
            params=request.echo if request else None,
            prompt=tuple(self.tokens) if with_text else (),
            generated=job.request.reader.text if job and with_text else "",
        )


def done_event(slot: Slot, job: Job, piece: Piece, stop: Stop) -> Done:
    """The last event of a request; releases whatever text was held back."""
    reader = job.request.reader
    if piece.stop_word is None:
        reader.finish()
    return Done(
        id=job.request.id,
        id_slot=slot.id,
        tokens=tuple(job.generated),
        text=reader.text,
        stop_type=stop.type,
        stop_word=piece.stop_word or "",
        truncated=stop.truncated,
        has_new_line=reader.has_new_line,
        n_tokens=len(slot.tokens),
        timings=replace(job.timings),
        n_stop_cut=job.n_unsent if stop.type == "word" else 0,
    )
