"""From a body to engine requests: what all generating routes share.

A route turns its own body into completion fields and token ids; ``make_requests`` makes the engine
requests of it, with a sampler and a text reader each, so that choices share no state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gguf_hybrid.engine.request import Request
from gguf_hybrid.sampling.chain import Sampler, TokenConstraint
from gguf_hybrid.text.stop import TextReader

from .context import Loaded
from .errors import not_supported
from .results import Json, generation_settings, slot_params
from .schema import CompletionParams

Ids = tuple[int, ...]


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
    kind: str = "completion",
    boundaries: tuple[int, ...] = (),
) -> list[list[Completion]]:
    """By prompt and choice. RequestError where sampler settings or a grammar cannot be used."""
    return [
        [
            _make(loaded, params, prompt, at * params.n_cmpl + choice, choice, kind, boundaries)
            for choice in range(params.n_cmpl)
        ]
        for at, prompt in enumerate(prompts)
    ]


def _make(
    loaded: Loaded,
    params: CompletionParams,
    prompt: Ids,
    index: int,
    choice: int,
    kind: str,
    boundaries: tuple[int, ...],
) -> Completion:
    if choice:  # completion k of a prompt draws with seed + k
        sampling = replace(params.sampling, seed=_seed_of_choice(params.sampling.seed, choice))
        params = replace(params, sampling=sampling)
    settings = generation_settings(params, loaded.tokenizer, loaded.runtime.speculative_types)
    sampler = Sampler(params.sampling, loaded.runtime.sampling_vocab, _constraint(loaded, params))
    request = Request(
        id=loaded.next_id(),
        prompt=prompt,
        sampler=sampler,
        reader=_reader(loaded, params),
        n_predict=_n_predict(loaded, params),
        id_slot=params.id_slot,
        cache_prompt=params.cache_prompt,
        return_progress=params.return_progress,
        t_max_predict_ms=params.t_max_predict_ms,
        boundaries=boundaries,
        kind=kind,
        echo=slot_params(settings),
    )
    return Completion(index, request, params, settings)


def _seed_of_choice(seed: int, choice: int) -> int:
    return seed if seed == 0xFFFFFFFF else (seed + choice) & 0xFFFFFFFF


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


def _constraint(loaded: Loaded, params: CompletionParams) -> TokenConstraint | None:
    """The grammar or schema that binds the output."""
    if not params.sampling.grammar and params.json_schema is None:
        return None
    raise not_supported("grammar and json_schema are not supported")
