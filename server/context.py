"""What handlers share: the configuration, and the model once it is loaded.

The application answers before there is a model, so the loaded part is filled in later. The types of
the runtime are protocols: the server imports nothing that imports MLX.
"""

import itertools
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.engine.limits import Limits
from gguf_hybrid.engine.pooling import Pooling
from gguf_hybrid.engine.slot_files import SlotFiles
from gguf_hybrid.engine.worker import Worker
from gguf_hybrid.memory.sequence_file import SequenceFormat
from gguf_hybrid.runtime_config import RuntimeConfig
from gguf_hybrid.sampling.constraint import GrammarVocab
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.sampling.vocab import SamplingVocab
from gguf_hybrid.text.template import ChatTemplate
from gguf_hybrid.text.tokenizer import Tokenizer

from .config import ServerConfig
from .errors import loading, server_error
from .metrics import RateWindow
from .queue_limit import QueueLimit
from .replies import Replies
from .schema import CompletionParams, CompletionSchema

BUILD_INFO = "b11434-gguf-hybrid"
"""UIs parse the ``bNNNN-`` in front: the release of llama.cpp whose API this is."""


class ModelInfo(Protocol):
    """What is told about the file. ``size`` is the bytes of its tensors."""

    path: str
    ftype: str
    n_params: int
    size: int


class Runtime(Protocol):
    """A loaded model with its engine running (``gguf_hybrid.runtime.Runtime``)."""

    config: RuntimeConfig
    worker: Worker
    tokenizer: Tokenizer
    template: ChatTemplate
    jinja: bool
    sampling_vocab: SamplingVocab
    model_config: ModelConfig
    info: ModelInfo
    limits: Limits
    metadata: Mapping[str, Any]
    speculative_types: str
    """As echoed: "none", or "none,draft-mtp"."""
    pooling: Pooling | None
    """What embeddings are made of; None without ``--embeddings``."""

    def sequence_format(self) -> SequenceFormat: ...

    async def close(self, timeout: float) -> object:
        """Stop the engine; give up waiting after ``timeout`` seconds."""
        ...


class Loaded:
    """A runtime and what this server derives from it once."""

    def __init__(self, runtime: Runtime, config: ServerConfig) -> None:
        """Raises RequestError when a default of the command line is out of bounds."""
        self.runtime = runtime
        self.tokenizer = runtime.tokenizer
        self.worker = runtime.worker
        self.config = config
        self.replies = Replies()
        self.queue = QueueLimit(runtime.limits.n_slots, config.queue_limit)
        self._ids = itertools.count()
        file_defaults = CompletionParams(
            sampling=SamplingParams().with_gguf_metadata(runtime.metadata).resolved(),
            reasoning_format=config.chat.reasoning_format,
        )
        schema = CompletionSchema(file_defaults, self.tokenizer, runtime.limits.n_slots)
        self.schema = schema.with_defaults(config.request)

    @property
    def model_name(self) -> str:
        return self.config.model_name

    @cached_property
    def slot_files(self) -> SlotFiles | None:
        """The files of ``--slot-save-path``; None without the flag."""
        folder = self.config.slot_save_path
        if folder is None:
            return None
        return SlotFiles(Path(folder), self.runtime.sequence_format(), self.runtime.worker)

    @cached_property
    def grammar_vocab(self) -> GrammarVocab:
        """Made by the first request that has a grammar."""
        words = self.tokenizer
        pieces = [words.token_bytes(i) for i in range(words.n_vocab)]
        return GrammarVocab(pieces, words.special.control, words.eog_ids)

    def token_id(self, text: str) -> int | None:
        """The one token that spells ``text``, if there is one."""
        ids = self.tokenizer.encode(text)
        return ids[0] if len(ids) == 1 else None

    def next_id(self) -> int:
        """A request id that was not given out before."""
        return next(self._ids)


@dataclass
class Context:
    """One server. ``failure`` is why the engine stopped, when it did."""

    config: ServerConfig
    model: Loaded | None = None
    failure: str | None = None
    start_time: float = field(default_factory=time.time)
    rates: RateWindow = field(default_factory=RateWindow)

    @cached_property
    def media_marker(self) -> str:
        """Random for each server, so that no prompt text can contain it by chance."""
        fixed = os.environ.get("LLAMA_MEDIA_MARKER")
        return fixed or f"<__media_{secrets.token_urlsafe(16)}__>"

    def loaded(self) -> Loaded:
        """The model; RequestError while there is none, and when the engine has stopped."""
        if self.failure is not None:
            raise server_error(f"the engine has stopped: {self.failure}")
        if self.model is None:
            raise loading()
        return self.model


CONTEXT = web.AppKey("context", Context)


def context_of(request: web.Request) -> Context:
    return request.app[CONTEXT]


def loaded(request: web.Request) -> Loaded:
    """The model a handler works with."""
    return request.app[CONTEXT].loaded()
