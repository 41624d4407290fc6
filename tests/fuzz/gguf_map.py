"""Where each field of a sound GGUF file lies, so that a mutation can aim at it."""

import struct
from dataclasses import dataclass
from enum import Enum, auto

WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
ALIGNMENT = 32


class Kind(Enum):
    """What a place holds."""

    HEADER = auto()
    LENGTH = auto()
    TEXT = auto()
    TYPE = auto()
    VALUE = auto()
    ITEMS = auto()
    DIMENSION = auto()
    OFFSET = auto()


@dataclass(frozen=True, slots=True)
class Place:
    """``nbytes`` bytes from ``start``; ``label`` is the key or tensor they belong to."""

    kind: Kind
    start: int
    nbytes: int
    label: str


@dataclass(frozen=True, slots=True)
class Data:
    """The bytes of one tensor."""

    name: str
    type: int
    start: int
    nbytes: int


class GGUFMap:
    """All places of a file, and where its tensors lie."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0
        self.places: list[Place] = []
        self._take(Kind.HEADER, 4, "magic")
        self._take(Kind.HEADER, 4, "version")
        n_tensors = self._number(Kind.HEADER, "<Q", "tensor count")
        for _ in range(self._number(Kind.HEADER, "<Q", "key count")):
            key = self._text("key")
            self._value(self._number(Kind.TYPE, "<I", key), key)
        infos = [self._info() for _ in range(n_tensors)]
        self.header_nbytes = self._at
        start = -(-self._at // ALIGNMENT) * ALIGNMENT
        ends = sorted([offset for _, _, offset in infos] + [len(raw) - start])
        self.tensors = [
            Data(name, kind, start + at, min(e for e in ends if e > at) - at)
            for name, kind, at in infos
        ]

    def of(self, *kinds: Kind) -> list[Place]:
        return [place for place in self.places if place.kind in kinds and place.nbytes]

    def _take(self, kind: Kind, nbytes: int, label: str) -> bytes:
        self.places.append(Place(kind, self._at, nbytes, label))
        self._at += nbytes
        return self._raw[self._at - nbytes : self._at]

    def _number(self, kind: Kind, form: str, label: str) -> int:
        (value,) = struct.unpack(form, self._take(kind, struct.calcsize(form), label))
        return int(value)

    def _text(self, label: str) -> str:
        return self._take(Kind.TEXT, self._number(Kind.LENGTH, "<Q", label), label).decode()

    def _value(self, kind: int, key: str) -> None:
        if kind == STRING:
            self._text(key)
        elif kind == ARRAY:
            item = self._number(Kind.TYPE, "<I", key)
            n = self._number(Kind.LENGTH, "<Q", key)
            if item == STRING:
                for _ in range(n):
                    self._text(key)
            else:
                self._take(Kind.ITEMS, n * WIDTHS[item], key)
        else:
            self._take(Kind.VALUE, WIDTHS[kind], key)

    def _info(self) -> tuple[str, int, int]:
        name = self._text("tensor name")
        for _ in range(self._number(Kind.LENGTH, "<I", name)):
            self._number(Kind.DIMENSION, "<Q", name)
        return (
            name,
            self._number(Kind.TYPE, "<I", name),
            self._number(Kind.OFFSET, "<Q", name),
        )
