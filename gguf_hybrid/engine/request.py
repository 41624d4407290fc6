"""The vocabulary shared by the engine and whoever talks to it: requests in, events out.

Plain messages, no arrays of the compute backend. The engine never sees text rules: a request brings
a ``reader`` that turns its tokens into text and says when a stop string ended it, so the slot stops
on the very token, inside the step. A request may bring a ``sampler`` already built (it holds the
request's own random generator and grammar), so rows never share sampling state.
"""

from dataclasses import dataclass, field
from typing import Protocol

from gguf_hybrid.errors import RequestError
from gguf_hybrid.memory.store import Floats
from gguf_hybrid.sampling.chain import Sampled, Sampler

from .pooling import Pooling


class Piece(Protocol):
    """What one token added (``gguf_hybrid.text.stop.Piece``)."""

    @property
    def text(self) -> str: ...

    @property
    def stop_word(self) -> str | None: ...

    @property
    def incomplete(self) -> bool: ...

    @property
    def under_indented(self) -> bool: ...


class Reader(Protocol):
    """Turns a request's tokens into text (``gguf_hybrid.text.stop.TextReader``)."""

    has_new_line: bool
    text: str

    def push(self, token_id: int, is_eog: bool) -> Piece: ...

    def finish(self) -> Piece: ...


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One completion to make. ``id`` is unique; the prompt is token ids.

    n_predict          new tokens, -1 = until an end token or the context is full
    id_slot            a slot to wait for, -1 = any
    cache_prompt       continue from what the slot (or a checkpoint) already holds
    t_max_predict_ms   checked when a newline has just been produced, -1 = off
    boundaries         positions at which the prompt must be cut (checkpoints): token counts
    kind               "completion" | "chat" | "infill" | "embedding"
    echo               settings shown by ``/slots`` (``params``)
    pooling            an embedding is wanted: the prompt is read and nothing sampled; asks for
                       ``cache_prompt`` False and leaves an empty slot
    """

    id: int
    prompt: tuple[int, ...]
    sampler: Sampler
    reader: Reader
    n_predict: int = -1
    id_slot: int = -1
    cache_prompt: bool = True
    return_progress: bool = False
    t_max_predict_ms: int = -1
    boundaries: tuple[int, ...] = ()
    kind: str = "completion"
    echo: dict[str, object] = field(default_factory=dict)
    pooling: Pooling | None = None


@dataclass(slots=True)
class Timings:
    """Counts and times as in contract 8.4; ms are floats, measured by the engine."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """The request has a slot and its prompt begins: HTTP headers may be sent."""

    id: int
    id_slot: int
    n_ctx: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A prompt chunk was processed (first with ``processed == cache``)."""

    id: int
    total: int
    cache: int
    processed: int
    time_ms: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. ``text`` may be empty (held back, end token, half a character)."""

    id: int
    token: int
    text: str
    incomplete: bool
    sampled: Sampled
    timings: Timings
    stop_word: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The request has ended; its slot is free. ``text`` is the whole content without stop word.

    stop_type    "eos" | "limit" | "word" | "none"
    truncated    stopped because the slot context is full
    n_tokens     tokens now in the slot
    n_stop_cut   trailing tokens that belong to the stop word (their probabilities are cut off)
    """

    id: int
    id_slot: int
    tokens: tuple[int, ...]
    text: str
    stop_type: str
    stop_word: str
    truncated: bool
    has_new_line: bool
    n_tokens: int
    timings: Timings
    n_stop_cut: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """An embedding request has ended; its slot is free and empty.

    vectors   float32 [1, n_embd], or [n_tokens, n_embd] without pooling; not normalised
    n_tokens  of the prompt
    """

    id: int
    id_slot: int
    vectors: Floats
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended with an error; nobody else was touched."""

    id: int
    error: RequestError


Event = Started | Progress | Token | Done | Embedded | Failed


@dataclass(frozen=True, slots=True)
class SlotView:
    """What ``/slots`` shows of one slot; taken between steps, read without waiting."""

    id: int
    n_ctx: int
    is_processing: bool
    id_task: int | None
    n_prompt_tokens: int
    n_prompt_tokens_processed: int
    n_prompt_tokens_cache: int
    n_prompt_tokens_restored: int
    n_prompt_tokens_reread: int
    n_decoded: int
    n_remain: int
    has_next_token: bool
    has_new_line: bool
    params: dict[str, object] | None
    prompt: tuple[int, ...] = ()
    generated: str = ""


@dataclass(slots=True)
class Counters:
    """Totals behind ``/metrics`` and the benchmarks; owned by the engine thread."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_tokens_restored: int = 0
    """Of ``prompt_tokens_cached``, those that came from a checkpoint or a parked conversation."""
    prompt_tokens_reread: int = 0
    """Of ``prompt_tokens``, those the slot or the cache knew but had no state for."""
    prompt_seconds: float = 0.0
    tokens_predicted: int = 0
    tokens_predicted_timed: int = 0
    """Of ``tokens_predicted``, those after the first of each request: what the seconds timed."""
    tokens_predicted_seconds: float = 0.0
    n_decode: int = 0
    """Forward passes."""
    n_decode_rows: int = 0
    """Decoding rows summed over the passes that had any."""
    n_decode_passes: int = 0
    """Passes with at least one decoding row."""
    n_busy_slots: int = 0
    """Busy slots summed over passes."""
    n_tokens_max: int = 0
    requests_processing: int = 0
    requests_deferred: int = 0
