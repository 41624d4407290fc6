"""From a body to engine requests: what all generating routes share.

A route turns its own body into completion fields and token ids; ``make_completions`` makes engine
requests of them, with a sampler and a text reader each, so that choices share no state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gguf_hybrid.engine.request import Request
from gguf_hybrid.errors import RequestError
from gguf_hybrid.sampling.chain import Sampler
from gguf_hybrid.sampling.constraint import Trigger
from gguf_hybrid.sampling.grammar import Grammar
from gguf_hybrid.sampling.params import RANDOM_SEED
from gguf_hybrid.sampling.reasoning_budget import ReasoningBudget
from gguf_hybrid.text.stop import TextReader

from .context import Loaded
from .results import Json, generation_settings, slot_params
from .schema import CompletionParams

Ids = tuple[int, ...]

NewBudget = Callable[[], ReasoningBudget | None]
"""Makes the thinking budget of one choice."""

# llama.cpp's numbers for kinds of triggers.
TRIGGER_TOKEN, TRIGGER_WORD = 0, 1


@dataclass(frozen=True, slots=True)
class Completion:
    """One choice: its engine request and the settings its result echoes."""

    index: int
    request: Request
    params: CompletionParams
    settings: Json


def make_completions(
    loaded: Loaded,
    params: CompletionParams,
    prompts: Sequence[Ids],
    *,
    grammar: Grammar | None = None,
    budget: NewBudget = lambda: None,
    kind: str = "completion",
    boundaries: tuple[int, ...] = (),
) -> list[list[Completion]]:
    """By prompt and choice. RequestError where sampler settings or a grammar cannot be used.

    Compiles the grammar, which may take a while: call it off the event loop.
    """
    maker = _Maker(loaded, params, grammar, budget, kind, boundaries)
    return [
        [maker.make(prompt, at * params.n_cmpl + k, k) for k in range(params.n_cmpl)]
        for at, prompt in enumerate(prompts)
    ]


@dataclass(frozen=True, slots=True)
class _Maker:
    """What all choices of a request have in common."""

    loaded: Loaded
    params: CompletionParams
    grammar: Grammar | None
    budget: NewBudget
    kind: str
    boundaries: tuple[int, ...]

    def make(self, prompt: Ids, index: int, choice: int) -> Completion:
        """Choice number ``choice`` of a prompt; it draws with the seed + ``choice``."""
        loaded, params = self.loaded, self.params
        if choice:
            sampling = replace(params.sampling, seed=_seed_of_choice(params.sampling.seed, choice))
            params = replace(params, sampling=sampling)
        settings = generation_settings(params, loaded.tokenizer, loaded.runtime.speculative_types)
        constraint = None if self.grammar is None else self.grammar.start(loaded.grammar_vocab)
        vocab = loaded.runtime.sampling_vocab
        request = Request(
            id=loaded.next_id(),
            prompt=prompt,
            sampler=Sampler(params.sampling, vocab, constraint, self.budget()),
            reader=_reader(loaded, params),
            n_predict=_n_predict(loaded, params),
            id_slot=params.id_slot,
            cache_prompt=params.cache_prompt,
            return_progress=params.return_progress,
            t_max_predict_ms=params.t_max_predict_ms,
            boundaries=self.boundaries,
            kind=self.kind,
            echo=slot_params(settings),
        )
        return Completion(index, request, params, settings)


def _seed_of_choice(seed: int, choice: int) -> int:
    return seed if seed == RANDOM_SEED else (seed + choice) & RANDOM_SEED


def _reader(loaded: Loaded, params: CompletionParams) -> TextReader:
    return TextReader(
        loaded.tokenizer,
        params.stop,
        special=loaded.config.special,
        preserved_tokens=frozenset(params.preserved_tokens),
        n_indent=params.n_indent,
    )


def _n_predict(loaded: Loaded, params: CompletionParams) -> int:
    """-1 leaves the server's own limit in force; 0 still makes one token, as in the reference."""
    asked = params.n_predict if params.n_predict != -1 else loaded.schema.defaults.n_predict
    return 1 if asked == 0 else asked


def own_grammar(loaded: Loaded, params: CompletionParams) -> Grammar | None:
    """What the request's own ``grammar`` or ``json_schema`` asks for; the grammar wins."""
    sampling = params.sampling
    if sampling.grammar:
        if not sampling.grammar_lazy:
            return Grammar.from_gbnf(sampling.grammar, (), loaded.token_id)
        triggers = tuple(_trigger(loaded, params, trigger) for trigger in params.grammar_triggers)
        # What nothing can wake has no effect, as in the reference.
        return Grammar.from_gbnf(sampling.grammar, triggers, loaded.token_id) if triggers else None
    if params.json_schema is None:
        return None
    try:
        return Grammar.from_schema(params.json_schema)
    except RequestError as error:
        raise RequestError(f"Field 'json_schema': \"json_schema\": {error}") from error


def _trigger(loaded: Loaded, params: CompletionParams, trigger: object) -> Trigger:
    """A ``grammar_triggers`` entry: a word, or a token by its text."""
    fields = trigger if isinstance(trigger, dict) else {}
    kind, word = fields.get("type"), fields.get("value")
    if kind not in (TRIGGER_TOKEN, TRIGGER_WORD) or not isinstance(word, str) or not word:
        raise RequestError("Field 'grammar_triggers': only word and token triggers are supported")
    ids = loaded.tokenizer.encode(word)
    if len(ids) > 1:
        return Trigger(text=word)
    if ids[0] not in params.preserved_tokens:
        raise RequestError(f"Grammar trigger word should be marked as preserved token: {word}")
    return Trigger(token=ids[0])
