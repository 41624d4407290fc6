"""Engine events as llama-server's native results.

A ``NativeChoice`` takes in the events of one completion; its chunks are what a stream sends, and
the whole answer is made of the same state, so both always agree. Field order is the reference's.
"""

from collections.abc import Sequence
from functools import cached_property

from gguf_hybrid.engine.request import Done, Progress, Timings, Token
from gguf_hybrid.sampling.chain import Sampled
from gguf_hybrid.text.tokenizer import Tokenizer

from .schema import CompletionParams

Json = dict[str, object]

_ORDER = (
    *("seed", "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p"),
    *("top_n_sigma", "xtc_probability", "xtc_threshold", "typical_p", "repeat_last_n"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base"),
    *("dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "mirostat"),
    *("mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "stop", "max_tokens"),
    *("n_predict", "n_keep", "n_discard", "ignore_eos", "stream", "logit_bias", "n_probs"),
    *("min_keep", "grammar", "grammar_lazy", "grammar_triggers", "preserved_tokens"),
    *("chat_format", "reasoning_format", "reasoning_in_content", "generation_prompt", "samplers"),
    *("speculative.types", "timings_per_token", "post_sampling_probs", "backend_sampling", "lora"),
)
_LONG = frozenset(
    {
        "dry_sequence_breakers",
        "stop",
        "logit_bias",
        "grammar",
        "grammar_lazy",
        "grammar_triggers",
        "preserved_tokens",
    }
)
_SMALLEST_MS = 0.001


def generation_settings(params: CompletionParams, tokenizer: Tokenizer, types: str) -> Json:
    """The ``generation_settings`` of a result; ``types`` is the kind of speculation in use."""
    shown: Json = params.sampling.resolved().settings(tokenizer.eog_ids)
    shown |= {
        "stop": list(params.stop),
        "max_tokens": params.n_predict,
        "n_predict": params.n_predict,
        "n_keep": params.n_keep,
        "n_discard": params.n_discard,
        "stream": params.stream,
        "grammar_triggers": list(params.grammar_triggers),
        "preserved_tokens": list(params.preserved_tokens),
        "chat_format": params.chat_format,
        "reasoning_format": params.reasoning_format,
        "reasoning_in_content": params.reasoning_in_content,
        "generation_prompt": params.generation_prompt,
        "speculative.types": types,
        "timings_per_token": params.timings_per_token,
        "lora": [{"id": id, "scale": scale} for id, scale in params.lora],
    }
    return {name: shown[name] for name in _ORDER}


def slot_params(settings: Json) -> Json:
    """The shorter form that ``/slots`` and ``/props`` show."""
    return {name: value for name, value in settings.items() if name not in _LONG}


def timings(t: Timings) -> Json:
    """Counts and rates; rates of generation leave out the first token. All numbers are finite."""
    predicted_ms = max(t.predicted_ms, _SMALLEST_MS) if t.predicted_n else t.predicted_ms
    n_timed = t.predicted_n - 1
    shown: Json = {
        "cache_n": t.cache_n,
        "prompt_n": t.prompt_n,
        "prompt_ms": t.prompt_ms,
        "prompt_per_token_ms": _ratio(t.prompt_ms, t.prompt_n),
        "prompt_per_second": _ratio(1e3 * t.prompt_n, t.prompt_ms),
        "predicted_n": t.predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, n_timed),
        "predicted_per_second": _ratio(1e3 * n_timed, predicted_ms) if n_timed > 0 else 0.0,
    }
    if t.draft_n:
        shown |= {"draft_n": t.draft_n, "draft_n_accepted": t.draft_n_accepted}
    return shown


class TokenNames:
    """How a token appears in a probability list: its text (empty for specials) and its bytes."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool, preserved: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._preserved = frozenset(preserved)

    def entry(self, sampled: Sampled, begun: Sequence[int] = ()) -> Json:
        """The ``completion_probabilities`` entry of a drawn token.

        A character that ``begun`` tokens started and this one completes counts as its text.
        """
        assert sampled.probs is not None
        post = sampled.probs.post_sampling
        value, top = ("prob", "top_probs") if post else ("logprob", "top_logprobs")
        return {
            **self._named(sampled.id, begun),
            value: sampled.probs.value,
            top: [{**self._named(i), value: p} for i, p in sampled.probs.top],
        }

    def _named(self, token: int, begun: Sequence[int] = ()) -> Json:
        raw = b"".join(self._piece(part) for part in (*begun, token))
        return {"id": token, "token": raw.decode(errors="replace"), "bytes": list(raw)}

    def _piece(self, token: int) -> bytes:
        return self._tokenizer.piece(token, self._special or token in self._preserved)


class NativeChoice:
    """One completion of a native answer."""

    def __init__(
        self,
        index: int,
        prompt: tuple[int, ...],
        params: CompletionParams,
        settings: Json,
        tokenizer: Tokenizer,
        *,
        model: str,
        special: bool = False,
    ) -> None:
        self.index = index
        self.done: Done | None = None
        self._probabilities: list[tuple[int, Json]] = []
        self._begun: list[int] = []
        self._prompt = prompt
        self._params = params
        self._settings = settings
        self._tokenizer = tokenizer
        self._names = TokenNames(tokenizer, special=special, preserved=params.preserved_tokens)
        self._model = model
        self._n_decoded = 0
        self._n_sent = 0

    def progress(self, event: Progress) -> Json | None:
        """The chunk that reports prompt processing, when asked for."""
        if not self._params.return_progress:
            return None
        report = {
            "total": event.total,
            "cache": event.cache,
            "processed": event.processed,
            "time_ms": event.time_ms,
        }
        return {**self._chunk("", 0, event.timings), "prompt_progress": report}

    def token(self, event: Token) -> Json | None:
        """The chunk of a token; none for one that ends inside a character."""
        self._n_decoded += 1
        self._n_sent += len(event.text)
        if event.incomplete:
            self._begun.append(event.token)
            return None
        begun, self._begun = self._begun, []
        chunk = self._chunk(event.text, event.token, event.timings, ended=bool(event.stop_word))
        if event.sampled.probs is not None:
            entry = self._names.entry(event.sampled, begun)
            self._probabilities.append((self._n_decoded, entry))
            chunk["completion_probabilities"] = [entry]
        return chunk

    def finish(self, done: Done) -> Json:
        """The last chunk of a stream: the totals, and text that was held back until now."""
        self.done = done
        return self._fields({**self._totals(done), "content": done.text[self._n_sent :]})

    def whole(self) -> Json:
        """The answer that is not streamed; after ``finish``."""
        assert self.done is not None
        result = self._totals(self.done)
        if self._params.return_tokens:
            result["tokens"] = list(self.done.tokens)
        kept = self._kept_probabilities()
        if kept:
            result["completion_probabilities"] = kept
        return self._fields(result)

    @cached_property
    def _prompt_text(self) -> str:
        return self._tokenizer.detokenize(self._prompt)

    def _kept_probabilities(self) -> list[Json]:
        """Those of the text: the tokens of a stop string are cut off."""
        assert self.done is not None
        n_kept = self._n_decoded - self.done.n_stop_cut
        return [entry for at, entry in self._probabilities if at <= n_kept]

    def _chunk(self, text: str, token: int, t: Timings, *, ended: bool = False) -> Json:
        chunk: Json = {
            "index": self.index,
            "content": text,
            "tokens": [token],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._n_decoded,
            "tokens_evaluated": len(self._prompt),
        }
        if ended or self._params.timings_per_token:
            chunk["timings"] = timings(t)
        return chunk

    def _totals(self, done: Done) -> Json:
        return {
            "index": self.index,
            "content": done.text,
            "tokens": [],
            "id_slot": done.id_slot,
            "stop": True,
            "model": self._model,
            "tokens_predicted": done.timings.predicted_n,
            "tokens_evaluated": len(self._prompt),
            "generation_settings": self._settings,
            "prompt": self._prompt_text,
            "has_new_line": done.has_new_line,
            "truncated": done.truncated,
            "stop_type": done.stop_type,
            "stopping_word": done.stop_word,
            "tokens_cached": done.n_tokens,
            "timings": timings(done.timings),
        }

    def _fields(self, result: Json) -> Json:
        """The paths of ``response_fields``, flattened, or everything."""
        if not self._params.response_fields:
            return result
        found = {path: _at(result, path) for path in self._params.response_fields}
        return {path: value[0] for path, value in found.items() if value}


def _at(result: object, path: str) -> list[object]:
    """[value at ``a/b``], or [] where there is none."""
    for key in path.split("/"):
        if not isinstance(result, dict) or key not in result:
            return []
        result = result[key]
    return [result]


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0
