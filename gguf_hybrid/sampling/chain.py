"""A request's sampler: raw logits of one position in, one token out.

Order: reasoning budget → constraint mask → logit bias → the samplers as listed → pick. Masking
before sampling departs from llama-server, which samples, rejects and samples again: the same
tokens are possible, and the probabilities are those of the allowed tokens. Everything a draw
depends on lives in here, so a seed repeats at any batch width.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gguf_hybrid.errors import StepError

from . import filters
from .candidates import Candidates, FloatArray
from .device import Choice, common_chain
from .draws import Draws, fresh_seed
from .dry import Dry
from .infill import infill
from .params import SamplingParams
from .penalties import LogitBias, Penalties
from .pickers import AdaptiveP, Dist, Mirostat, Picker
from .probs import TokenProbs, drawn_probs, model_probs
from .reasoning_budget import ReasoningBudget
from .vocab import SamplingVocab

Stage = Callable[[Candidates], Candidates]

# Samplers that move single logits, and those that never remove the largest one.
_SHIFTING = frozenset({"penalties", "dry"})
_KEEPS_PEAK = frozenset({"top_n_sigma", "top_k", "top_p", "min_p", "temperature"})


class TokenConstraint(Protocol):
    """What may come next; ``constraint`` has the implementations."""

    def prepare_mask(self) -> None:
        """Starts or does the work of ``mask``; may run on any one thread."""

    def mask(self) -> NDArray[np.bool_] | None:
        """Allowed tokens, bool [n_vocab]; None when all are."""

    def accept(self, token: int) -> None:
        """Moves on by a generated token."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The chosen token, with probabilities when ``n_probs`` asked for them."""

    id: int
    probs: TokenProbs | None = None


class Sampler:
    """The sampling state of one request. Not thread-safe."""

    def __init__(
        self,
        params: SamplingParams,
        vocab: SamplingVocab,
        constraint: TokenConstraint | None = None,
        budget: ReasoningBudget | None = None,
    ) -> None:
        """Raises RequestError for settings llama-server refuses."""
        self.params = params.resolved()
        self.constraint = constraint
        self.budget = budget
        self._vocab = vocab
        seed = fresh_seed(self.params.seed)
        self._xtc_draws = Draws(seed)
        biases = self.params.biases(vocab.eog_ids)
        self._bias = LogitBias(biases) if biases else None
        self._history: list[Penalties | Dry] = []
        self._stages = self._mirostat_stages() if self.params.mirostat else self._listed_stages()
        self._draws = Draws(seed)
        self._picker = self._make_picker(self._draws)
        plain = constraint is None and budget is None
        self._common = common_chain(self.params, biases) if plain else None

    def accept_prompt(self, tokens: Iterable[int]) -> None:
        """Lets the penalties see the prompt. The constraint does not: it binds output only."""
        longest = max(self.params.repeat_last_n, self.params.dry_penalty_last_n)
        tokens = list(tokens)
        for token in islice(tokens, max(0, len(tokens) - longest), None):
            self._remember(token)

    def accept(self, token: int) -> None:
        """A token became part of the output."""
        self._remember(token)
        self._picker.accept(token)
        if self.budget:
            self.budget.accept(token)
        if self.constraint:
            self.constraint.accept(token)

    def prepare_mask(self) -> None:
        """What ``sample`` can do before there are logits: on any thread, while the model runs."""
        if self.constraint:
            self.constraint.prepare_mask()

    def choice(self, n_ahead: int = 0) -> Choice | None:
        """What a device needs to choose in place of ``sample``; None if it can't. ``n_ahead``
        tokens are still being chosen there. ``accept_choice`` has to follow for each."""
        common = self._common
        if common is None:
            return None
        window = self._penalties[0].before_the_last(n_ahead) if self._penalties else ()
        return Choice(common, window, self._draws.ahead(n_ahead))

    def accept_choice(self, token: int) -> None:
        """A device chose ``token`` with the earliest number that ``choice`` gave."""
        self._draws.uniform()
        self.accept(token)

    def sample(self, logits: FloatArray) -> Sampled:
        """Draws a token for raw ``logits``, float32 [n_vocab], which are left unchanged.

        ``accept`` has to follow. Raises StepError where no token can be chosen: a NaN or infinite
        logit, or a mask that allows nothing.
        """
        logits = np.asarray(logits, dtype=np.float32)
        if logits.shape != (self._vocab.n_vocab,):
            raise StepError(f"logits have shape {logits.shape}, not [{self._vocab.n_vocab}]")
        if not np.isfinite(logits.max()):
            raise StepError("the model produced logits that are not finite")
        mask = self.constraint.mask() if self.constraint else None
        candidates = self._forced(mask) or self._biased(self._allowed(logits, mask))
        for stage in self._stages:
            candidates = stage(candidates)
        candidates, position = self._picker.pick(candidates)
        token = int(candidates.ids[position])
        return Sampled(token, self._report(logits, candidates, position))

    def _forced(self, mask: NDArray[np.bool_] | None) -> Candidates | None:
        """The one token that ends the reasoning, unless a grammar binds the reasoning too."""
        token = self.budget.forced if self.budget else None
        if token is None or (mask is not None and not mask[token]):
            return None
        return Candidates(np.array([token]), np.zeros(1, dtype=np.float32), is_sorted=True)

    def _allowed(self, logits: FloatArray, mask: NDArray[np.bool_] | None) -> Candidates:
        everything = Candidates(self._vocab.ids, logits, is_full=True)
        if mask is None:
            return everything
        allowed = everything.take(np.flatnonzero(mask))
        if not len(allowed) or np.isneginf(allowed.logits.max()):
            raise StepError("the grammar allows none of the tokens the model can produce")
        return allowed

    def _biased(self, candidates: Candidates) -> Candidates:
        if not self._bias:
            return candidates
        biased = self._bias.apply(candidates)
        if not np.isneginf(biased.logits.max()):
            return biased
        if self.constraint:
            # ignore_eos at the end of a grammar: ending is then the only valid output.
            return candidates
        raise StepError("logit_bias bans every token")

    def _report(self, logits: FloatArray, drawn: Candidates, position: int) -> TokenProbs | None:
        n = self.params.n_probs
        if n <= 0:
            return None
        if self.params.post_sampling_probs:
            return drawn_probs(drawn, position, n)
        return model_probs(logits, int(drawn.ids[position]), n)

    @property
    def _penalties(self) -> list[Penalties]:
        return [penalty for penalty in self._history if isinstance(penalty, Penalties)]

    def _remember(self, token: int) -> None:
        for penalty in self._history:
            penalty.accept(token)

    def _make_picker(self, draws: Draws) -> Picker:
        if self.params.mirostat:
            return Mirostat(self.params, self._vocab.n_vocab, draws)
        if "adaptive_p" in self.params.samplers:
            return AdaptiveP(self.params, draws)
        return Dist(draws)

    def _mirostat_stages(self) -> list[Stage]:
        """Mirostat replaces the list: only the plain temperature comes before it."""
        return [partial(filters.temperature, t=self.params.temperature)]

    def _listed_stages(self) -> list[Stage]:
        made = [(name, self._stage(name)) for name in self.params.samplers]
        active = [(name, stage) for name, stage in made if stage]
        shifting = [stage for name, stage in active if name in _SHIFTING]
        if self._is_greedy([name for name, _ in active]):
            # Nothing in the chain can remove the peak: find it without sorting anything.
            return [*shifting, partial(filters.top_k, k=1)]
        return [stage for _, stage in active]

    def _is_greedy(self, active: list[str]) -> bool:
        p = self.params
        if p.temperature > 0 or p.dynatemp_range > 0 or "temperature" not in active:
            return False
        rest = [name for name in active if name not in _SHIFTING]
        shifts_first = all(name in _SHIFTING for name in active[: len(active) - len(rest)])
        return shifts_first and _KEEPS_PEAK.issuperset(rest) and "adaptive_p" not in p.samplers

    def _stage(self, name: str) -> Stage | None:
        """The sampler ``name`` as a function; None where its settings switch it off."""
        p = self.params
        match name:
            case "penalties" if Penalties.is_active(p):
                return self._watching(Penalties(p)).apply
            case "dry" if Dry.is_active(p):
                return self._watching(Dry(p, self._vocab)).apply
            case "top_n_sigma" if p.top_n_sigma > 0:
                return partial(filters.top_n_sigma, n=p.top_n_sigma)
            case "top_k" if p.top_k > 0:
                return partial(filters.top_k, k=p.top_k)
            case "typ_p" if p.typical_p < 1:
                return partial(filters.typical, p=p.typical_p, min_keep=p.min_keep)
            case "top_p" if p.top_p < 1:
                return partial(filters.top_p, p=p.top_p, min_keep=p.min_keep)
            case "min_p" if p.min_p > 0:
                return partial(filters.min_p, p=p.min_p, min_keep=p.min_keep)
            case "xtc" if p.xtc_probability > 0 and p.xtc_threshold <= 0.5:
                return self._xtc
            case "temperature":
                return partial(
                    filters.dynamic_temperature,
                    t=p.temperature,
                    spread=p.dynatemp_range,
                    exponent=p.dynatemp_exponent,
                )
            case "infill":
                return partial(infill, vocab=self._vocab)
        return None

    def _watching(self, penalty: "Penalties | Dry") -> "Penalties | Dry":
        self._history.append(penalty)
        return penalty

    def _xtc(self, candidates: Candidates) -> Candidates:
        """XTC has a generator of its own, so that switching it on leaves the other draws alone."""
        p = self.params
        if len(candidates) < 2 or self._xtc_draws.uniform32() > p.xtc_probability:
            return candidates
        return filters.exclude_top_choices(candidates, p.xtc_threshold, p.min_keep)
