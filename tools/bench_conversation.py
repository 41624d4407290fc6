"""A scripted agent: what the user and the tools say is fixed, the replies are the server's own.

Every third turn is a question, the others bring the result of a tool, whether or not the model has
called one: a call put into its mouth would not be what it had written. The template drops the
thinking of all replies before the last question, so each question changes the prompt far behind its
end, which is what a recurrent state cannot follow.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gguf_hybrid.text.tokenizer import Tokenizer

from .bench_client import Client, Stream

Message = dict[str, Any]

QUESTION_EVERY = 3
TOOL = "read_file"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "Read a part of a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
                "required": ["path"],
            },
        },
    }
]
SYSTEM = "You are a careful programmer. Read before you answer, and name the files you have read."
PROSE = (
    "the of a to in is that for it as with on by an be at from are this was or have not which river"
    " table number value return import class def self name list index error result open read"
)
WORDS = tuple(PROSE.split())


@dataclass(frozen=True, slots=True)
class Script:
    """What comes in at each turn: a question, or the result of a tool."""

    openings: tuple[Message, ...]


def make_script(
    tokenizer: Tokenizer, n_turns: int, tool_tokens: tuple[int, int], seed: int
) -> Script:
    """The same for the same seed. Results of tools have between ``tool_tokens`` tokens."""
    rng = np.random.default_rng(seed)
    openings: list[Message] = []
    for turn in range(n_turns):
        if turn % QUESTION_EVERY == 0:
            text = f"Question {seed}.{turn}: what does " + _prose(rng, 30) + "?"
            openings.append({"role": "user", "content": text})
        else:
            n_tokens = int(rng.integers(*tool_tokens, endpoint=True))
            text = _of_length(tokenizer, rng, n_tokens)
            openings.append({"role": "tool", "content": text})
    return Script(tuple(openings))


def _prose(rng: np.random.Generator, n_words: int) -> str:
    return " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), n_words))


def _of_length(tokenizer: Tokenizer, rng: np.random.Generator, n_tokens: int) -> str:
    """Prose that is ``n_tokens`` long; every word is at least one token."""
    ids = tokenizer.encode(_prose(rng, n_tokens), parse_special=False)
    return tokenizer.detokenize(ids[:n_tokens])


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn cost. ``known`` tokens of the prompt the server had computed before, in this
    conversation; the reply is what the server sent."""

    n_prompt: int
    known: int
    cache_n: int
    prompt_n: int
    ttft: float
    reply: Message

    @property
    def reread(self) -> int:
        """Tokens computed a second time."""
        return max(0, self.known - self.cache_n)


@dataclass(slots=True)
class Conversation:
    """One agent talking to one server. ``n_predict`` bounds each reply."""

    client: Client
    tokenizer: Tokenizer
    script: Script
    n_predict: int
    turns: list[Turn] = field(default_factory=list)
    _messages: list[Message] = field(default_factory=lambda: [_system()])
    _bodies: list[Mapping[str, Any]] = field(default_factory=list)
    _computed: list[list[int]] = field(default_factory=list)

    def next_turn(self) -> Turn:
        """Send the next message of the script and take the reply into the conversation."""
        number = len(self.turns)
        self._messages.append(self.script.openings[number])
        body = self._body()
        prompt = self.client.post("/apply-template", body)["prompt"]
        ids = self.tokenizer.encode(prompt, add_special=True)
        stream = self.client.stream("/v1/chat/completions", body)
        reply = folded(stream)
        self._bodies.append(body)
        self.turns.append(self._turn(ids, stream, reply))
        generated = self.tokenizer.encode(prompt + _raw_text(reply), add_special=True)
        self._computed.append(generated)
        self._messages.append(as_history(reply))
        return self.turns[-1]

    def cold_reply(self, turn: int) -> Message:
        """The reply to the same request when nothing may be reused."""
        body = {**self._bodies[turn], "cache_prompt": False}
        return folded(self.client.stream("/v1/chat/completions", body))

    def _body(self) -> dict[str, Any]:
        return {
            "messages": list(self._messages),
            "tools": TOOLS,
            "max_tokens": self.n_predict,
            "temperature": 0,
            "stream_options": {"include_usage": True},
        }

    def _turn(self, ids: list[int], stream: Stream, reply: Message) -> Turn:
        known = max((n_common(ids, computed) for computed in self._computed), default=0)
        timings = stream.timings
        return Turn(len(ids), known, timings["cache_n"], timings["prompt_n"], stream.ttft, reply)


def _system() -> Message:
    return {"role": "system", "content": SYSTEM}


def as_history(reply: Message) -> Message:
    """A reply as it is sent back; of calls those that the bound on the reply did not cut."""
    message = {"role": "assistant", "content": reply["content"]}
    if reply["reasoning_content"]:
        message["reasoning_content"] = reply["reasoning_content"]
    calls = list(filter(_is_whole, reply["tool_calls"]))
    if calls:
        message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return message


def _is_whole(call: Message) -> bool:
    """Whether the call was finished: the bound on the reply may have cut it."""
    try:
        return bool(call["name"]) and isinstance(json.loads(call["arguments"]), dict)
    except ValueError:
        return False


def folded(stream: Stream) -> Message:
    """The whole reply of a chat stream: ``content``, ``reasoning_content``, ``tool_calls`` by
    name and arguments."""
    reply: Message = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in stream.events:
        delta = event["choices"][0]["delta"] if event.get("choices") else {}
        reply["content"] += delta.get("content") or ""
        reply["reasoning_content"] += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls") or ():
            calls, function = reply["tool_calls"], part.get("function", {})
            if part["index"] == len(calls):
                calls.append({"name": "", "arguments": ""})
            for key in ("name", "arguments"):
                calls[part["index"]][key] += function.get(key) or ""
    return reply


def _raw_text(reply: Message) -> str:
    """About what the model wrote behind the prompt, which has opened its thinking."""
    calls = [_raw_call(call) for call in reply["tool_calls"] if _is_whole(call)]
    answer = "\n\n".join(filter(None, [reply["content"], "\n".join(calls)]))
    thinking = str(reply["reasoning_content"])
    return f"{thinking.rstrip()}\n</think>\n\n{answer}" if answer else thinking


def _raw_call(call: Message) -> str:
    """The call as Qwen's templates write it."""
    arguments = json.loads(call["arguments"]).items()
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function={call['name']}>\n{values}</function>\n</tool_call>"


def n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Leading items that are equal."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(differs[0]) if len(differs) else n
