"""What a request may ask of the sampler: llama.cpp's names, defaults and bounds.

``NUMBER_FIELDS`` is the one table of numeric bounds; the HTTP layer checks a body with it and
``SamplingParams.resolved`` clamps with it. Floats are rounded to float32, because that is the
precision the values act in and the one in which they are echoed.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from gguf_hybrid.errors import GGUFError, RequestError
from gguf_hybrid.keys import shown as quoted

from .candidates import FLOAT32_MAX
from .names import DEFAULT_SAMPLERS, samplers_from_names

INT32_MAX = 2**31 - 1
RANDOM_SEED = 0xFFFFFFFF  # also what -1 wraps to: a fresh random seed for each request

Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class NumberField:
    """A numeric request field: ``hard`` bounds are refused, ``soft`` ones silently clamped."""

    name: str
    kind: type[int] | type[float]
    hard: Bounds | None = None
    soft: Bounds | None = None
    aliases: tuple[str, ...] = ()

    def checked(self, value: float, spelled: str | None = None) -> float:
        """``value`` as this field's type and within its bounds.

        ``spelled`` is the alias the client used. Raises RequestError for a value outside the hard
        bounds and for one that is not finite.
        """
        name = spelled or self.name
        if not math.isfinite(value):
            raise RequestError(f"Field '{name}': Value must be finite, but got {value}")
        number: float = int(value) if self.kind is int else _float32(value)
        if self.hard and not self.hard[0] <= number <= self.hard[1]:
            least, most, got = (self._text(x) for x in (*self.hard, value))
            raise RequestError(
                f"Field '{name}': Value must be between {least} <= value <= {most}, but got {got}"
            )
        low, high = self.soft or self._range()
        return min(max(number, low), high)

    def _range(self) -> Bounds:
        return (-INT32_MAX - 1, INT32_MAX) if self.kind is int else (-FLOAT32_MAX, FLOAT32_MAX)

    def _text(self, value: float) -> str:
        return str(int(value)) if self.kind is int else f"{value:f}"


def _float32(value: float) -> float:
    return float(np.float32(min(max(value, -FLOAT32_MAX), FLOAT32_MAX)))


_AT_LEAST_0 = (0, INT32_MAX)
_UNIT = (0.0, 1.0)

NUMBER_FIELDS: tuple[NumberField, ...] = (
    NumberField("seed", int, soft=(0, RANDOM_SEED)),
    NumberField("temperature", float, soft=(0.0, FLOAT32_MAX)),
    NumberField("dynatemp_range", float),
    NumberField("dynatemp_exponent", float),
    NumberField("top_k", int, soft=_AT_LEAST_0),
    NumberField("top_p", float, soft=_UNIT),
    NumberField("min_p", float, soft=_UNIT),
    NumberField("top_n_sigma", float),
    NumberField("xtc_probability", float, soft=_UNIT),
    NumberField("xtc_threshold", float, soft=_UNIT),
    NumberField("typical_p", float),
    NumberField("repeat_last_n", int, hard=_AT_LEAST_0),
    NumberField("repeat_penalty", float),
    NumberField("presence_penalty", float),
    NumberField("frequency_penalty", float),
    NumberField("dry_multiplier", float),
    NumberField("dry_base", float),
    NumberField("dry_allowed_length", int, hard=_AT_LEAST_0),
    NumberField("dry_penalty_last_n", int, hard=_AT_LEAST_0),
    NumberField("mirostat", int, soft=(0, 2)),
    NumberField("mirostat_tau", float),
    NumberField("mirostat_eta", float),
    NumberField("adaptive_target", float, soft=(-FLOAT32_MAX, 1.0)),
    NumberField("adaptive_decay", float, hard=(0.0, _float32(0.99))),
    NumberField("n_probs", int, aliases=("logprobs",)),
    NumberField("min_keep", int, hard=_AT_LEAST_0),
    NumberField("reasoning_budget_tokens", int, hard=(-1, INT32_MAX)),
)

# general.sampling.* metadata of a GGUF → field. They stand between the built-in defaults and flags.
GGUF_FIELDS = {
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "temp": "temperature",
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's sampling settings. Field meanings and defaults are llama-server's."""

    seed: int = RANDOM_SEED
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit; -inf bans it)
    n_probs: int = 0
    min_keep: int = 0
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS
    post_sampling_probs: bool = False
    backend_sampling: bool = False  # echoed only
    grammar: str = ""  # as the client wrote it, for the echo; what binds is the Constraint
    grammar_lazy: bool = False
    reasoning_budget_tokens: int = -1

    def resolved(self) -> "SamplingParams":
        """These settings clamped, rounded and checked; idempotent.

        Raises RequestError (400) for what llama-server refuses.
        """
        _check_penalties(self)
        changes = {field.name: field.checked(getattr(self, field.name)) for field in NUMBER_FIELDS}
        changes["seed"] = self.seed & RANDOM_SEED
        if self.dry_base < 1.0:
            changes["dry_base"] = SamplingParams().dry_base
        return replace(self, **changes)  # type: ignore[arg-type]

    def biases(self, eog_ids: Iterable[int]) -> tuple[tuple[int, float], ...]:
        """``logit_bias`` with, under ``ignore_eos``, every end-of-generation token banned."""
        banned = eog_ids if self.ignore_eos else ()
        return self.logit_bias + tuple((token, -math.inf) for token in sorted(banned))

    def settings(self, eog_ids: Iterable[int] = ()) -> dict[str, Any]:
        """The sampling part of ``generation_settings``, ready for JSON (-inf is null)."""
        shown = {f.name: getattr(self, f.name) for f in fields(self)}
        del shown["reasoning_budget_tokens"]
        shown["dry_sequence_breakers"] = list(self.dry_sequence_breakers)
        shown["samplers"] = list(self.samplers)
        shown["logit_bias"] = [
            {"bias": bias if math.isfinite(bias) else None, "token": token}
            for token, bias in self.biases(eog_ids)
        ]
        return shown

    def with_gguf_metadata(self, metadata: Mapping[str, Any]) -> "SamplingParams":
        """These defaults overlaid with the file's ``general.sampling.*`` keys; GGUFError names a
        key of the wrong kind."""
        prefix = "general.sampling."
        changes: dict[str, Any] = {}
        for key, field in GGUF_FIELDS.items():
            if (value := metadata.get(prefix + key)) is not None:
                if not isinstance(value, int | float) or not math.isfinite(value):
                    raise GGUFError(f"{prefix}{key}: {quoted(value)} is not a finite number")
                changes[field] = type(getattr(self, field))(value)
        sequence = metadata.get(prefix + "sequence", "")
        if not isinstance(sequence, str):
            raise GGUFError(f"{prefix}sequence: {quoted(sequence)} is not a string")
        if sequence:
            changes["samplers"] = samplers_from_names(sequence.split(";"))
        return replace(self, **changes)


def _check_penalties(params: SamplingParams) -> None:
    """The checks llama.cpp makes when it builds the chain, with its wording."""
    repeat = params.repeat_penalty
    # 1e-39 is above zero, but its reciprocal is not a float32.
    if not math.isfinite(repeat) or _float32(repeat) < 1 / FLOAT32_MAX:
        raise _initialisation_error("penalty_repeat must be finite and greater than 0")
    if not math.isfinite(params.frequency_penalty):
        raise _initialisation_error("penalty_freq must be finite")
    if not math.isfinite(params.presence_penalty):
        raise _initialisation_error("penalty_present must be finite")


def _initialisation_error(reason: str) -> RequestError:
    return RequestError(f"Failed to initialize samplers: {reason}")
