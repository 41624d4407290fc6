"""A runtime without a model: its worker answers every request with the same tokens.

The tokenizer is a real one, so that texts, stop strings and probability lists are real too.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from gguf_hybrid.engine.cache import CacheStats
from gguf_hybrid.engine.pooling import Pooling
from gguf_hybrid.engine.request import (
    Counters,
    Done,
    Embedded,
    Event,
    Failed,
    Progress,
    Request,
    SlotView,
    Started,
    Timings,
    Token,
)
from gguf_hybrid.errors import ContextOverflowError, RequestError, StepError
from gguf_hybrid.memory.store import Floats
from gguf_hybrid.runtime_config import RuntimeConfig
from gguf_hybrid.sampling.chain import Sampled
from gguf_hybrid.sampling.probs import TokenProbs
from gguf_hybrid.sampling.vocab import SamplingVocab
from gguf_hybrid.text.template import ChatTemplate
from gguf_hybrid.text.tokenizer import Tokenizer
from gguf_hybrid.weights.reader import open_gguf

MODEL = Path(__file__).parent.parent / "data/models/qwen35-tiny-Q4_K_M.gguf"
REPLY = "River is a noun:\n a large natural stream."
N_CTX = 256


@cache
def metadata() -> dict[str, Any]:
    return dict(open_gguf(MODEL).metadata)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(metadata())


@cache
def reply_ids(reply: str = REPLY) -> tuple[int, ...]:
    eos = tokenizer().eos_id
    assert eos is not None
    return (*tokenizer().encode(reply), eos)


@cache
def sampling_vocab() -> SamplingVocab:
    words = tokenizer()
    pieces = [words.piece(i, False) for i in range(words.n_vocab)]
    return SamplingVocab(pieces, words.eog_ids, words.encode)


def embedding_of(prompt: Sequence[int], pooling: Pooling = Pooling.LAST) -> Floats:
    """What the worker says is the embedding of a prompt: three numbers a vector."""
    every = np.array([[token, i - 1, 0.5] for i, token in enumerate(prompt)], np.float32)
    return every if pooling is Pooling.NONE else every[-1:]


class FakeTask:
    """Plays the reply for each request in turn; ``gate`` holds it before every token."""

    def __init__(self, worker: "FakeWorker", requests: Sequence[Request]) -> None:
        self.worker = worker
        self.requests = requests

    def cancel(self) -> None:
        self.worker.cancelled += [request.id for request in self.requests]

    async def events(self) -> AsyncIterator[Event]:
        for request in self.requests:
            n_left = self.worker.n_tokens_before_error
            for event in self._play(request):
                if isinstance(event, Token):
                    await self.worker.gate.wait()
                    if n_left == 0:
                        yield Failed(request.id, StepError("the row has failed"))
                        return
                    n_left -= 1
                await asyncio.sleep(0)
                yield event

    def _play(self, request: Request) -> list[Event]:
        n = len(request.prompt)
        if self.worker.error is not None:
            return [Failed(request.id, self.worker.error)]
        if n >= self.worker.n_ctx:
            return [Failed(request.id, ContextOverflowError(n, self.worker.n_ctx))]
        t = Timings(cache_n=1, prompt_n=n - 1, prompt_ms=2.0)
        events: list[Event] = [Started(request.id, 0, self.worker.n_ctx)]
        if request.return_progress:
            events.append(Progress(request.id, n, 1, n, 2, t))
        if request.pooling is not None:
            vectors = embedding_of(request.prompt, request.pooling)
            return [*events, Embedded(request.id, 0, vectors, n)]
        return events + self._tokens(request, t)

    def _tokens(self, request: Request, t: Timings) -> list[Event]:
        events: list[Event] = []
        generated: list[int] = []
        stop_type, stop_word = "limit", ""
        for id in reply_ids(self.worker.reply):
            generated.append(id)
            t = Timings(t.cache_n, t.prompt_n, t.prompt_ms, len(generated), 10.0 * len(generated))
            is_eog = id in tokenizer().eog_ids
            piece = request.reader.push(id, is_eog)
            events.append(self._token(request, id, t, piece))
            if is_eog or piece.stop_word:
                stop_type, stop_word = "eos" if is_eog else "word", piece.stop_word or ""
                break
            if len(generated) == request.n_predict:
                break
        if not stop_word:
            request.reader.finish()
        return [*events, self._done(request, generated, t, stop_type, stop_word)]

    def _token(self, request: Request, id: int, t: Timings, piece: Any) -> Token:
        n_probs = request.sampler.params.n_probs
        probs = TokenProbs(-0.5, ((id, -0.5), (5, -2.0))[:n_probs], False) if n_probs else None
        return Token(
            request.id, id, piece.text, piece.incomplete, Sampled(id, probs), t, piece.stop_word
        )

    def _done(
        self, request: Request, ids: list[int], t: Timings, stop_type: str, stop_word: str
    ) -> Done:
        return Done(
            request.id,
            0,
            tuple(ids),
            request.reader.text,
            stop_type,
            stop_word,
            False,
            request.reader.has_new_line,
            len(request.prompt) + len(ids) - 1,
            t,
            1 if stop_word else 0,
        )


@dataclass
class FakeWorker:
    error: RequestError | None = None
    n_tokens_before_error: int = -1
    """Fail each request after so many tokens; -1 = never."""
    reply: str = REPLY
    n_ctx: int = N_CTX
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    submitted: list[Request] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    views: list[SlotView] = field(default_factory=list)
    totals: Counters = field(default_factory=Counters)

    is_sleeping = False

    def __post_init__(self) -> None:
        self.gate.set()

    def submit(self, requests: Sequence[Request]) -> FakeTask:
        self.submitted += requests
        return FakeTask(self, requests)

    async def call(self, function: Callable[[Any], Any]) -> Any:
        self.is_sleeping = False
        return function(None)

    def slots(self) -> list[SlotView]:
        return self.views

    def counters(self) -> Counters:
        return self.totals

    def cache(self) -> CacheStats:
        return CacheStats(3, 4096, 8192)


class FakeRuntime:
    """What the server sees of a loaded model."""

    def __init__(self) -> None:
        self.config = RuntimeConfig(model=str(MODEL))
        self.worker = FakeWorker()
        self.tokenizer = tokenizer()
        self.sampling_vocab = sampling_vocab()
        self.metadata = metadata()
        self.template = ChatTemplate(
            self.metadata["tokenizer.chat_template"],
            self.tokenizer.bos_text,
            self.tokenizer.eos_text,
        )
        self.jinja = True
        self.speculative_types = "none"
        self.pooling: Pooling | None = None
        self.model_config = SimpleNamespace(n_vocab=4096, n_embd=256, n_ctx_train=32768)
        self.info = SimpleNamespace(path=str(MODEL), ftype="Q4_K_M", n_params=8878384, size=5)
        self.limits = SimpleNamespace(n_slots=2, n_ctx=N_CTX)

    async def close(self, timeout: float) -> None:
        """Nothing runs."""
