"""The samplers of a chain by name: canonical names, the letters of the string form, and aliases.

Names are llama.cpp's. An unknown name or letter is skipped with a log line, as the reference does.
"""

import logging
from collections.abc import Iterable

log = logging.getLogger(__name__)

DEFAULT_SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)

SAMPLER_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}


def _spellings() -> dict[str, str]:
    """Every accepted spelling → canonical name: as it is, kebab-case, without underscores."""
    table = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}
    for name in SAMPLER_LETTERS.values():
        table |= {name: name, name.replace("_", "-"): name, name.replace("_", ""): name}
    # The full word is what the request field is called.
    return table | {"typical": "typ_p", "typical_p": "typ_p", "typical-p": "typ_p"}


_SPELLINGS = _spellings()


def samplers_from_names(names: Iterable[str]) -> tuple[str, ...]:
    """Canonical names of a list such as ``["top-k", "temp"]``."""
    return _known([(name, _SPELLINGS.get(name.lower())) for name in names])


def samplers_from_letters(letters: str) -> tuple[str, ...]:
    """Canonical names of a string of letters such as ``"kt"``."""
    return _known([(letter, SAMPLER_LETTERS.get(letter)) for letter in letters])


def _known(asked: list[tuple[str, str | None]]) -> tuple[str, ...]:
    for spelled, name in asked:
        if name is None:
            log.warning("unknown sampler %r is skipped", spelled)
    return tuple(name for _, name in asked if name is not None)
