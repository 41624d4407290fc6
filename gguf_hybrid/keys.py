"""Typed look-ups of model metadata: ``keys.count("block_count")`` reads ``{arch}.block_count``.

Every failure is a GGUFError of one line that names the key. Values come from a GGUF reader or from
plain Python mappings: arrays may be numpy arrays, lists or string sequences.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import GGUFError

MAX_WIDTH = 1 << 20
MAX_TOKENS = (1 << 31) - 1


class Keys:
    """Typed look-ups of ``{arch}.name``; each failure is one line that names the key."""

    def __init__(self, metadata: Mapping[str, Any], arch: str, source: str) -> None:
        self.arch = arch
        self._metadata = metadata
        self._source = source

    def fail(self, name: str, what: str) -> GGUFError:
        return GGUFError(f"{self._source}: key {self._full(name)} {what}")

    def __contains__(self, name: str) -> bool:
        return self._full(name) in self._metadata

    def count(
        self, name: str, default: int | None = None, low: int = 1, high: int = MAX_WIDTH
    ) -> int:
        """An integer within [low, high]."""
        return self._count(name, self._get(name, default), low, high)

    def number(
        self, name: str, default: float | None = None, low: float = 0.0, high: float = 1e12
    ) -> float:
        """A float within [low, high]."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(name, f"is {shown(value)}, not a number")
        if not low <= value <= high:
            raise self.fail(name, f"is {value}, outside {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, f"is {shown(value)}, not a bool")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.fail(name, f"is {shown(value)}, not a string")
        return value

    def length(self, name: str) -> int:
        """Number of entries of an array that is not empty."""
        return self._count(name, len(self._array(name)), 1, MAX_TOKENS)

    def array(self, name: str, length: int) -> list[Any]:
        """An array of exactly ``length`` entries."""
        value = self._array(name)
        if len(value) != length:
            raise self.fail(name, f"has {len(value)} entries, expected {length}")
        return list(value.tolist() if hasattr(value, "tolist") else value)

    def per_layer(
        self,
        name: str,
        n_block: int,
        layers: Iterable[int],
        default: int | None = None,
        low: int = 1,
    ) -> int:
        """A count: a scalar, or an array of ``n_block`` entries that is constant on ``layers``."""
        if not isinstance(self._get(name, default), Sequence | np.ndarray):
            return self.count(name, default, low)
        entries = self.array(name, n_block)
        values = {entries[i] for i in layers}
        if len(values) != 1:
            raise self.fail(name, "differs between layers, which is not supported")
        return self._count(name, values.pop(), low, MAX_WIDTH)

    def _full(self, name: str) -> str:
        return name if name.startswith("tokenizer.") else f"{self.arch}.{name}"

    def _get(self, name: str, default: Any = None) -> Any:
        value = self._metadata.get(self._full(name), default)
        if value is None:
            raise self.fail(name, "is missing")
        return value

    def _array(self, name: str) -> Any:
        value = self._get(name)
        if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
            raise self.fail(name, f"is {shown(value)}, not an array")
        return value

    def _count(self, name: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(name, f"is {shown(value)}, not an integer")
        if not low <= value <= high:
            raise self.fail(name, f"is {value}, outside {low} to {high}")
        return value


def shown(value: Any) -> str:
    """A short form of a value for messages."""
    return repr(value)[:40]
