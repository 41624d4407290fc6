"""A builder of small GGUF files, byte by byte, so that it can also make damaged ones."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

STRING, ARRAY = 8, 9
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def packed_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def packed_value(type_id: int, value: object) -> bytes:
    if type_id == STRING:
        assert isinstance(value, str | bytes)
        return packed_string(value)
    return struct.pack("<" + CODES[type_id], value)


@dataclass
class GGUFBuilder:
    """Collects keys and tensors; `build` gives the bytes of a file."""

    version: int = 3
    alignment: int = 32
    fields: list[bytes] = field(default_factory=list)
    infos: list[bytes] = field(default_factory=list)
    data: bytes = b""
    n_fields: int | None = None
    n_tensors: int | None = None

    def raw_field(self, key: str | bytes, type_id: int, raw: bytes) -> "GGUFBuilder":
        self.fields.append(packed_string(key) + struct.pack("<i", type_id) + raw)
        return self

    def field(self, key: str, type_id: int, value: object) -> "GGUFBuilder":
        return self.raw_field(key, type_id, packed_value(type_id, value))

    def array(self, key: str, item_id: int, values: list[object]) -> "GGUFBuilder":
        items = b"".join(packed_value(item_id, value) for value in values)
        return self.raw_field(key, ARRAY, struct.pack("<iQ", item_id, len(values)) + items)

    def tensor(
        self,
        name: str | bytes,
        ne: tuple[int, ...],
        data: bytes,
        type_id: int = 0,
        offset: int | None = None,
    ) -> "GGUFBuilder":
        at = len(self.data) if offset is None else offset
        dims = struct.pack(f"<I{len(ne)}q", len(ne), *ne)
        self.infos.append(packed_string(name) + dims + struct.pack("<iQ", type_id, at))
        self.data += data + bytes(-len(data) % self.alignment)
        return self

    def build(self) -> bytes:
        n_tensors = len(self.infos) if self.n_tensors is None else self.n_tensors
        n_fields = len(self.fields) if self.n_fields is None else self.n_fields
        head = b"GGUF" + struct.pack("<IQQ", self.version, n_tensors, n_fields)
        head += b"".join(self.fields) + b"".join(self.infos)
        return head + bytes(-len(head) % self.alignment) + self.data


@pytest.fixture
def builder() -> type[GGUFBuilder]:
    return GGUFBuilder


@pytest.fixture
def gguf_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes bytes (or what a builder builds) to a file and returns its path."""

    def write(content: bytes | GGUFBuilder, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.build())
        return path

    return write
