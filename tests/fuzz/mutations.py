"""Damage: seeded mutations of GGUF files, JSON, safetensors and slot files, each with its name."""

import hashlib
import json
import random
import struct
from collections.abc import Callable
from typing import Any

from gguf_hybrid.tools.check import SCALES

from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType

from .gguf_map import Data, GGUFMap, Kind

NUMBERS = (0, 1, 2, 3, 7, 31, 33, 127, 255, 256, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31)
NUMBERS += ((1 << 32) - 1, 1 << 32, 1 << 40, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e-45, 3e38, 1e9)
BAD_HALVES = (0x7C00, 0xFC00, 0x7E01, 0xFFFF, 0x7BFF)
TEMPLATES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% include '/etc/passwd' %}",
    "{{ raise_exception('no') }}",
    "{% for",
    "",
)
TEMPLATE_KEY = "tokenizer.chat_template"
MAX_MUTATIONS = 3

Mutated = tuple[bytes, str]


class GGUFMutator:
    """Mutants of one sound file."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._map = GGUFMap(raw)

    def mutate(self, rng: random.Random) -> Mutated:
        """One to MAX_MUTATIONS mutations; those that keep positions come first."""
        data, names = bytearray(self._raw), []
        for _ in range(rng.choice((1, 1, 2, MAX_MUTATIONS))):
            names.append(rng.choice(self._steady())(rng, data))
        if rng.random() < 0.25:
            names.append(rng.choice(self._moving())(rng, data))
        return bytes(data), ", ".join(names)

    def _steady(self) -> list[Callable[[random.Random, bytearray], str]]:
        return [
            self._number,
            self._number,
            self._value,
            self._value,
            self._text,
            self._items,
            self._template,
            self._scale,
            self._scale,
            self._noise,
        ]

    def _moving(self) -> list[Callable[[random.Random, bytearray], str]]:
        return [self._truncate, self._append, self._delete, self._insert]

    def _number(self, rng: random.Random, data: bytearray) -> str:
        kinds = (Kind.HEADER, Kind.LENGTH, Kind.TYPE, Kind.DIMENSION, Kind.OFFSET)
        place = rng.choice(self._map.of(rng.choice(kinds)))
        now = int.from_bytes(data[place.start : place.start + place.nbytes], "little")
        near = (now + 1, now - 1, now * 2, now // 2, now ^ (1 << rng.randrange(16)))
        value = rng.choice(near if rng.random() < 0.5 else (*NUMBERS, rng.randrange(48)))
        value %= 1 << 8 * place.nbytes
        data[place.start : place.start + place.nbytes] = value.to_bytes(place.nbytes, "little")
        return f"{place.kind.name} of {place.label} = {value}"

    def _value(self, rng: random.Random, data: bytearray) -> str:
        place = rng.choice(self._map.of(Kind.VALUE))
        if place.nbytes == 4 and rng.random() < 0.4:
            new = struct.pack("<f", rng.choice(FLOATS))
        else:
            value = rng.choice((*NUMBERS, rng.randrange(9), rng.randrange(5000)))
            new = (value % (1 << 8 * place.nbytes)).to_bytes(place.nbytes, "little")
        data[place.start : place.start + place.nbytes] = new
        return f"{place.label} = {new.hex()}"

    def _text(self, rng: random.Random, data: bytearray) -> str:
        place = rng.choice(self._map.of(Kind.TEXT))
        for _ in range(rng.randint(1, 4)):
            data[place.start + rng.randrange(place.nbytes)] = rng.choice((0, 10, 0xFF, 0xC3, 0x41))
        return f"text of {place.label}"

    def _items(self, rng: random.Random, data: bytearray) -> str:
        place = rng.choice(self._map.of(Kind.ITEMS))
        at = place.start + rng.randrange(place.nbytes) // 4 * 4
        data[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) % (1 << 32))[: len(data) - at]
        return f"item of {place.label}"

    def _template(self, rng: random.Random, data: bytearray) -> str:
        texts = [p for p in self._map.of(Kind.TEXT) if p.label == TEMPLATE_KEY]
        place, template = texts[0], rng.choice(TEMPLATES)
        data[place.start : place.start + place.nbytes] = template.encode().ljust(place.nbytes)
        return f"template {template!r}"

    def _scale(self, rng: random.Random, data: bytearray) -> str:
        tensor: Data = rng.choice(self._map.tensors)
        kind = GGMLType(tensor.type)
        block = rng.randrange(tensor.nbytes // BLOCK_SIZES[kind].nbytes)
        at = tensor.start + block * BLOCK_SIZES[kind].nbytes + rng.choice(SCALES.get(kind, (0,)))
        if kind is GGMLType.F32:
            data[at : at + 4] = struct.pack("<f", rng.choice(FLOATS))
        else:
            data[at : at + 2] = struct.pack("<H", rng.choice(BAD_HALVES))
        return f"scale in {tensor.name}"

    def _noise(self, rng: random.Random, data: bytearray) -> str:
        end = self._map.header_nbytes if rng.random() < 0.7 else len(data)
        for _ in range(rng.randint(1, 16)):
            data[rng.randrange(end)] = rng.randrange(256)
        return "noise"

    def _truncate(self, rng: random.Random, data: bytearray) -> str:
        end = rng.choice((self._map.header_nbytes, len(data)))
        del data[rng.randrange(end) :]
        return f"cut at {len(data)}"

    def _append(self, rng: random.Random, data: bytearray) -> str:
        data += rng.randbytes(rng.randint(1, 4096))
        return "bytes appended"

    def _delete(self, rng: random.Random, data: bytearray) -> str:
        at = rng.randrange(self._map.header_nbytes)
        del data[at : at + rng.randint(1, 64)]
        return f"bytes missing at {at}"

    def _insert(self, rng: random.Random, data: bytearray) -> str:
        at = rng.randrange(self._map.header_nbytes)
        data[at:at] = rng.randbytes(rng.randint(1, 64))
        return f"bytes inserted at {at}"


ODD_VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1, 2, 1.5, 1e308, 1 << 31, 1 << 63)
ODD_VALUES += (
    1 << 70,
    "",
    "x",
    "\x00",
    "../../etc/passwd",
    "é\ud83d",
    [],
    {},
    [[]],
    [None],
    {"": 0},
)


def mutate_json(raw: bytes, rng: random.Random) -> Mutated:
    """Another value somewhere, a missing or doubled entry, or damaged bytes."""
    if rng.random() < 0.2:
        return _damaged(raw, rng)
    root = json.loads(raw)
    holder, key = _random_entry(root, rng)
    action = rng.choice(("replace", "replace", "remove", "double"))
    if action == "replace":
        holder[key] = rng.choice(ODD_VALUES)
    elif action == "remove":
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(key, holder[key])
    else:
        holder[f"{key}_"] = holder[key]
    return json.dumps(root).encode(), f"{action} {key!r}"


def _random_entry(root: Any, rng: random.Random) -> tuple[Any, Any]:
    """A container in the tree and one of its keys; entries near the root are likelier."""
    holder = root
    while True:
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        child = holder[key]
        if not isinstance(child, dict | list) or not child or rng.random() < 0.3:
            return holder, key
        holder = child


def _damaged(raw: bytes, rng: random.Random) -> Mutated:
    data = bytearray(raw)
    if rng.random() < 0.4:
        del data[rng.randrange(len(data)) :]
        return bytes(data), f"cut at {len(data)}"
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data), "noise"


def mutate_safetensors(raw: bytes, rng: random.Random) -> Mutated:
    """A safetensors shard with another header, another header length, or damaged bytes."""
    (n,) = struct.unpack_from("<Q", raw)
    if rng.random() < 0.2:
        length = rng.choice(NUMBERS)
        return struct.pack("<Q", length) + raw[8:], f"header length {length}"
    if rng.random() < 0.2:
        return _damaged(raw, rng)
    header, name = mutate_json(raw[8 : 8 + n], rng)
    return struct.pack("<Q", len(header)) + header + raw[8 + n :], f"header: {name}"


def mutate_slot_file(raw: bytes, rng: random.Random) -> Mutated:
    """Damaged bytes, or another header or other data under a checksum made anew."""
    if rng.random() < 0.2:
        return _damaged(raw, rng)
    prefix = struct.Struct("<8sII")
    magic, version, n = prefix.unpack_from(raw)
    header, body = raw[prefix.size : prefix.size + n], bytearray(raw[prefix.size + n : -32])
    if rng.random() < 0.6:
        header, name = mutate_json(header, rng)
    else:
        at = rng.randrange(len(body) // 4) * 4
        body[at : at + 4] = struct.pack("<f", rng.choice(FLOATS))
        name = f"float at {at}"
    whole = prefix.pack(magic, version, len(header)) + header + bytes(body)
    return whole + hashlib.sha256(whole).digest(), name
