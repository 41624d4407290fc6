"""What both OpenAI dialects put around their choices."""

import time
from dataclasses import dataclass, field

from gguf_hybrid.engine.request import Done, Timings
from gguf_hybrid.text.chat_parser import random_id

from .context import BUILD_INFO
from .results import Json


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields all objects of one answer share."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{random_id()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def around(self, choices: list[Json], kind: str, **more: object) -> Json:
        return {
            "choices": choices,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": BUILD_INFO,
            "object": kind,
            **{name: value for name, value in more.items() if name == "usage"},
            "id": self.id,
            **{name: value for name, value in more.items() if name != "usage"},
        }


def usage(done: Done) -> Json:
    """Token counts of a finished choice; the end token counts."""
    n_prompt = prompt_length(done.timings)
    n_predicted = done.timings.predicted_n
    return {
        "completion_tokens": n_predicted,
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_predicted,
        "prompt_tokens_details": {"cached_tokens": done.timings.cache_n},
    }


def prompt_length(timings: Timings) -> int:
    return timings.cache_n + timings.prompt_n
