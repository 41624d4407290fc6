"""Which ggml type each tensor gets: the named mixes of llama-quantize (b11434).

The rules count tensors as they pass, so order matters: blocks by number, names by bytes within a
block, everything else first. Models with exactly eight experts have rules of their own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

import numpy as np

from gguf_hybrid.errors import ConfigError
from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType
from gguf_hybrid.weights.metadata import Field
from gguf_hybrid.weights.reader import GGUFFile

T: TypeAlias = GGMLType


@dataclass(frozen=True)
class Mix:
    """A target of ``quantize``: its ``general.file_type`` and the type most tensors get."""

    name: str
    file_type: int
    base: GGMLType


MIXES = {
    mix.name: mix
    for mix in (
        Mix("F32", 0, T.F32),
        Mix("F16", 1, T.F16),
        Mix("BF16", 32, T.BF16),
        Mix("Q8_0", 7, T.Q8_0),
        Mix("Q4_0", 2, T.Q4_0),
        Mix("Q4_1", 3, T.Q4_1),
        Mix("Q5_0", 8, T.Q5_0),
        Mix("Q5_1", 9, T.Q5_1),
        Mix("Q2_K", 10, T.Q2_K),
        Mix("Q3_K_S", 11, T.Q3_K),
        Mix("Q3_K_M", 12, T.Q3_K),
        Mix("Q3_K_L", 13, T.Q3_K),
        Mix("Q4_K_S", 14, T.Q4_K),
        Mix("Q4_K_M", 15, T.Q4_K),
        Mix("Q5_K_S", 16, T.Q5_K),
        Mix("Q5_K_M", 17, T.Q5_K),
        Mix("Q6_K", 18, T.Q6_K),
        Mix("IQ4_NL", 25, T.IQ4_NL),
        Mix("IQ4_XS", 30, T.IQ4_XS),
    )
}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
QUANTIZABLE = frozenset(mix.base for mix in MIXES.values())
FLOATS = (T.F32, T.F16, T.BF16)
FALLBACKS = {
    T.Q2_K: T.Q4_0,
    T.Q3_K: T.Q4_0,
    T.Q4_K: T.Q5_0,
    T.Q5_K: T.Q5_1,
    T.Q6_K: T.Q8_0,
    T.IQ4_XS: T.IQ4_NL,
}
KEPT = ("_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d")
FIVE_BIT_OUTPUT = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")
BLOCK = re.compile(r"blk\.(\d+)\.")


class Role(Enum):
    """What a tensor does, as far as the mixes care."""

    OUTPUT = auto()
    EMBEDDING = auto()
    VALUES = auto()
    KEYS = auto()
    ATTENTION_OUTPUT = auto()
    FFN_DOWN = auto()
    OTHER = auto()


ROLE_PARTS = (
    ("attn_qkv.weight", Role.VALUES),
    ("attn_v.weight", Role.VALUES),
    ("attn_k.weight", Role.KEYS),
    ("attn_output.weight", Role.ATTENTION_OUTPUT),
    ("ffn_down", Role.FFN_DOWN),
)


@dataclass(frozen=True)
class Overrides:
    """What the person asked for beyond the mix. ``patterns`` are regexes, the first match wins."""

    pure: bool = False
    output: GGMLType | None = None
    embedding: GGMLType | None = None
    patterns: Sequence[tuple[re.Pattern[str], GGMLType]] = ()


def role_of(name: str) -> Role:
    """The role of the tensor ``name``."""
    if name == "output.weight":
        return Role.OUTPUT
    if name == "token_embd.weight":
        return Role.EMBEDDING
    return next((role for part, role in ROLE_PARTS if part in name), Role.OTHER)


def block_of(name: str) -> int:
    """Block index, -1 for tensors outside of the blocks."""
    match = BLOCK.match(name)
    return int(match[1]) if match else -1


def quantize_order(names: Sequence[str]) -> list[str]:
    """The order in which llama-quantize visits and writes tensors."""
    return sorted(names, key=lambda name: (block_of(name), name.encode()))


def is_quantized(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor is converted at all; the others are copied."""
    is_matrix = any(n > 1 for n in shape[:-1])
    return is_matrix and name.endswith("weight") and not any(part in name for part in KEPT)


def target_types(
    model: GGUFFile, mix: Mix, overrides: Overrides, *, has_imatrix: bool
) -> dict[str, GGMLType]:
    """Type of each tensor of ``model`` in the output, in the order in which they are written."""
    names = quantize_order(list(model.tensors))
    chooser = _Chooser(_model_facts(model, names), mix, overrides, has_imatrix)
    types: dict[str, GGMLType] = {}
    for name in names:
        tensor = model.tensors[name]
        quantized = is_quantized(name, tensor.shape)
        types[name] = chooser.choose(name, tensor.shape[-1]) if quantized else tensor.type
    return types


@dataclass(frozen=True)
class _Facts:
    n_block: int
    n_expert: int
    n_gqa: int
    n_values: int
    tied: bool


def _model_facts(model: GGUFFile, names: Sequence[str]) -> _Facts:
    arch = str(model.fields["general.architecture"].value)

    def number(key: str, default: int) -> int:
        return _first_number(model.fields.get(f"{arch}.{key}"), default)

    n_head = number("attention.head_count", 1)
    n_head_kv = number("attention.head_count_kv", n_head)
    return _Facts(
        n_block=number("block_count", 0),
        n_expert=number("expert_count", 0),
        n_gqa=n_head // n_head_kv if n_head_kv else 0,
        n_values=sum(role_of(name) is Role.VALUES for name in names),
        tied="output.weight" not in names,
    )


def _first_number(entry: Field | None, default: int) -> int:
    """A number, or the first of an array with one number a layer."""
    if entry is None:
        return default
    value = entry.value[0] if isinstance(entry.value, np.ndarray) else entry.value
    return int(value)  # type: ignore[arg-type]


def _more_bits(i: int, n: int) -> bool:
    """The first and last eighth of the layers and every third in between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


@dataclass
class _Chooser:
    """The rules of one run; ``i_values`` and ``i_down`` count the tensors seen so far."""

    facts: _Facts
    mix: Mix
    overrides: Overrides
    has_imatrix: bool
    i_values: int = field(default=0, init=False)
    i_down: int = field(default=0, init=False)

    def choose(self, name: str, n_columns: int) -> GGMLType:
        role = role_of(name)
        if role is Role.EMBEDDING and self.overrides.embedding is not None:
            return _fitting(name, n_columns, self.overrides.embedding)
        if role is Role.OUTPUT and self.overrides.output is not None:
            return _fitting(name, n_columns, self.overrides.output)
        if self.mix.base in FLOATS:
            return self.mix.base
        for pattern, ggml_type in self.overrides.patterns:
            if pattern.search(name):
                return _with_fallback(ggml_type, n_columns)
        if self.overrides.pure:
            return _with_fallback(self.mix.base, n_columns)
        return _with_fallback(self._by_role(name, role, n_columns), n_columns)

    def _by_role(self, name: str, role: Role, n_columns: int) -> GGMLType:
        if role is Role.OUTPUT or (role is Role.EMBEDDING and self.facts.tied):
            return self._output(n_columns)
        if role is Role.VALUES:
            self.i_values += 1
            return self._values(self.i_values - 1)
        if role is Role.KEYS and self.facts.n_expert == 8:
            return T.Q8_0
        if role is Role.FFN_DOWN:
            self.i_down += 1
            layer = block_of(name) if self.facts.n_expert > 1 else self.i_down - 1
            return self._ffn_down(layer, self.facts.n_block)
        if role is Role.ATTENTION_OUTPUT:
            return self._attention_output()
        return self.mix.base

    def _output(self, n_columns: int) -> GGMLType:
        if self.overrides.output is not None:
            return self.overrides.output
        if n_columns % BLOCK_SIZES[self.mix.base].length or self.mix.base is T.Q8_0:
            return T.Q8_0
        return T.Q6_K

    def _values(self, i: int) -> GGMLType:
        if self.facts.n_expert == 8:
            return T.Q8_0
        wide = self.facts.n_gqa >= 4
        more = _more_bits(i, self.facts.n_values)
        choices: Mapping[str, GGMLType | None] = {
            "Q2_K": T.Q4_K if wide else T.Q3_K,
            "Q3_K_M": T.Q5_K if i < 2 else T.Q4_K,
            "Q3_K_L": T.Q5_K,
            "IQ4_NL": T.Q5_K if wide else None,
            "IQ4_XS": T.Q5_K if wide else None,
            "Q4_K_S": T.Q5_K if i < 4 else None,
            "Q4_K_M": T.Q6_K if more else None,
            "Q5_K_M": T.Q6_K if more else None,
        }
        return choices.get(self.mix.name) or self.mix.base

    def _ffn_down(self, i: int, n: int) -> GGMLType:
        first = i < n // 8
        choices: Mapping[str, GGMLType | None] = {
            "Q2_K": T.Q3_K,
            "Q3_K_M": T.Q5_K if i < n // 16 else T.Q4_K,
            "Q3_K_L": T.Q5_K,
            "Q4_K_S": T.Q5_K if first else None,
            "Q4_K_M": T.Q6_K if _more_bits(i, n) else None,
            "Q5_K_M": T.Q6_K if _more_bits(i, n) else None,
            "IQ4_NL": T.Q5_K if first and not self.has_imatrix else None,
            "IQ4_XS": T.Q5_K if first and not self.has_imatrix else None,
            "Q4_0": T.Q4_1 if first and self.has_imatrix else None,
            "Q5_0": T.Q5_1 if first and self.has_imatrix else None,
        }
        return choices.get(self.mix.name) or self.mix.base

    def _attention_output(self) -> GGMLType:
        if self.facts.n_expert == 8:
            return T.Q5_K if self.mix.name in FIVE_BIT_OUTPUT else self.mix.base
        choices = {"Q2_K": T.Q3_K, "Q3_K_M": T.Q4_K, "Q3_K_L": T.Q5_K}
        return choices.get(self.mix.name, self.mix.base)


def _fits(ggml_type: GGMLType, n_columns: int) -> bool:
    return n_columns % BLOCK_SIZES[ggml_type].length == 0


def _fitting(name: str, n_columns: int, ggml_type: GGMLType) -> GGMLType:
    if not _fits(ggml_type, n_columns):
        raise ConfigError(f"{name}: rows of {n_columns} are not whole {ggml_type.name} blocks")
    return ggml_type


def _with_fallback(ggml_type: GGMLType, n_columns: int) -> GGMLType:
    """The type itself, or a similar one whose blocks divide the row, F16 at worst."""
    for candidate in (ggml_type, FALLBACKS.get(ggml_type, ggml_type)):
        if _fits(candidate, n_columns):
            return candidate
    return T.F16
