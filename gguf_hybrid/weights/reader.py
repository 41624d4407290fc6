"""GGUF v2/v3 files, mapped: typed metadata and a description of each tensor, nothing decoded.

An own parser, because gguf-py's trusts every count and offset of the file. All checks happen on the
header, so a damaged file is refused before memory is spent. Layout: docs of the GGUF format, v3;
version 2 has the same bytes. Data of a tensor is a read-only view of the mapping.
"""

import contextlib
import mmap
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gguf_hybrid.errors import GGUFError

from .ggml import BLOCK_SIZES, GGMLType, row_nbytes
from .metadata import Cursor, Field, Value, ValueType, read_fields
from .shards import shard_paths

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_NAME_BYTES = 63
DEFAULT_ALIGNMENT = 32
MADV_POPULATE_READ = 22
"""Of <linux/mman.h>; Python's mmap does not name it."""
MIN_FIELD_BYTES = 8 + 1 + 4 + 1
MIN_INFO_BYTES = 8 + 1 + 4 + 4 + 8


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies. ``shape`` is in numpy order: (out, in) for a linear weight.

    ``offset`` counts from the start of ``mapping``, which is that of ``file`` unless ``in_file`` is
    False. A mapping starts on a page, so ``address`` is aligned as the file aligns it (32 bytes
    unless ``general.alignment`` says otherwise).
    """

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int
    mapping: mmap.mmap = field(repr=False, compare=False)
    in_file: bool = True

    @property
    def size(self) -> int:
        """Number of weights."""
        return prod(self.shape)

    @property
    def data(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """(nbytes,) uint8, read-only, the bytes of the file: ggml blocks, row after row."""
        view = np.frombuffer(self.mapping, np.uint8, self.nbytes, self.offset)
        view.flags.writeable = False
        return view

    @property
    def address(self) -> int:
        """Address of the first byte; valid as long as this object lives."""
        return int(self.data.ctypes.data)

    def map_pages(self) -> None:
        """Read the pages into memory and map them now, where the system can (Linux 5.14), so that
        the first request does not pay for a fault every 4 KiB."""
        if self.in_file and sys.platform == "linux":
            first = self.offset // mmap.PAGESIZE * mmap.PAGESIZE
            with contextlib.suppress(OSError):
                self.mapping.madvise(MADV_POPULATE_READ, first, self.offset + self.nbytes - first)

    def drop_pages(self) -> None:
        """Let the system reclaim the mapped pages; they are read again when touched."""
        if not self.in_file:
            return
        first = -(-self.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (self.offset + self.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if length > 0:
            self.mapping.madvise(mmap.MADV_DONTNEED, first, length)


@dataclass(frozen=True)
class GGUFFile:
    """A model: one file, or all shards of a split one. ``metadata`` is the first shard's."""

    paths: tuple[Path, ...]
    version: int
    fields: Mapping[str, Field]
    tensors: Mapping[str, TensorInfo]

    @property
    def path(self) -> Path:
        """The file, or the first shard."""
        return self.paths[0]

    @property
    def metadata(self) -> dict[str, Value]:
        """Values by key: int, float, bool, str, read-only numpy arrays, `StringArray`."""
        return {key: entry.value for key, entry in self.fields.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True)
class _Shard:
    path: Path
    version: int
    fields: dict[str, Field]
    tensors: dict[str, TensorInfo]


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Map a GGUF file; any shard of a split file leads to the whole set.

    Raises GGUFError, one line that names the file and the key or tensor.
    """
    given = _open_shard(Path(path))
    count = _split_number(given, "split.count", 1)
    if count == 1:
        return _gguf_file([given])
    paths = shard_paths(given.path, count)
    shards = [given if p == given.path else _open_shard(p) for p in paths]
    for i, shard in enumerate(shards):
        _check_place(shard, i, count)
    return _gguf_file(shards)


def _gguf_file(shards: list[_Shard]) -> GGUFFile:
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for name in tensors.keys() & shard.tensors.keys():
            raise GGUFError(f"{shard.path}: tensor {name} is also in {tensors[name].file}")
        tensors |= shard.tensors
    first = shards[0]
    total = _split_number(first, "split.tensors.count", len(tensors))
    if len(shards) > 1 and total != len(tensors):
        raise GGUFError(
            f"{first.path}: split.tensors.count is {total}, the shards hold {len(tensors)} tensors"
        )
    return GGUFFile(
        paths=tuple(shard.path for shard in shards),
        version=first.version,
        fields=MappingProxyType(first.fields),
        tensors=MappingProxyType(tensors),
    )


def _split_number(shard: _Shard, key: str, default: int) -> int:
    if key not in shard.fields:
        return default
    value = shard.fields[key].value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise GGUFError(f"{shard.path}: {key} is {value!r}, not a count")
    return value


def _check_place(shard: _Shard, place: int, count: int) -> None:
    for key, want in (("split.no", place), ("split.count", count)):
        if (have := _split_number(shard, key, -1)) != want:
            shown = "missing" if have < 0 else have
            raise GGUFError(f"{shard.path}: key {key} is {shown}, expected {want}")


def _open_shard(path: Path) -> _Shard:
    cursor = Cursor(str(path), _map_file(path))
    version, n_tensors, n_fields = _read_header(cursor)
    fields = read_fields(cursor, n_fields)
    alignment = _alignment(cursor, fields)
    infos = [_read_info(cursor, i) for i in range(n_tensors)]
    data_start = -(-cursor.pos // alignment) * alignment
    tensors = _place_tensors(cursor, path, infos, data_start, alignment)
    return _Shard(path, version, fields, tensors)


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise GGUFError(f"{path}: not a regular file")
            if status.st_size < len(MAGIC):
                raise GGUFError(f"{path}: not a GGUF file ({status.st_size} bytes)")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GGUFError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_header(cursor: Cursor) -> tuple[int, int, int]:
    magic = cursor.buffer[cursor.take(len(MAGIC), "magic") : cursor.pos]
    if magic != MAGIC:
        raise cursor.fail(f"not a GGUF file (starts with {magic!r})")
    version = cursor.number("I", "version")
    if version and version & 0xFFFF == 0:
        raise cursor.fail("byte-swapped GGUF: made for a big-endian machine")
    if version not in VERSIONS:
        raise cursor.fail(f"GGUF version {version} is not supported (only 2 and 3)")
    n_tensors = cursor.count("tensors", MIN_INFO_BYTES)
    n_fields = cursor.count("keys", MIN_FIELD_BYTES)
    return version, n_tensors, n_fields


def _alignment(cursor: Cursor, fields: dict[str, Field]) -> int:
    entry = fields.get("general.alignment", Field(DEFAULT_ALIGNMENT, ValueType.U32))
    value = entry.value
    if entry.type is not ValueType.U32 or not isinstance(value, int) or value.bit_count() != 1:
        raise cursor.fail(f"general.alignment is {value!r}, not a power of two (u32)")
    return value


@dataclass(frozen=True)
class _Info:
    """A tensor info as the file has it; ``offset`` counts from the start of the data."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return row_nbytes(self.type, self.shape[-1]) * prod(self.shape[:-1])


def _read_info(cursor: Cursor, i: int) -> _Info:
    name = cursor.name(f"name of tensor {i}", MAX_NAME_BYTES)
    n_dims = cursor.number("I", f"dimensions of tensor {name}")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.fail(f"tensor {name} has {n_dims} dimensions (1 to {MAX_DIMS})")
    ne = [cursor.number("q", f"shape of tensor {name}") for _ in range(n_dims)]
    if min(ne) < 1:
        raise cursor.fail(f"tensor {name} has the shape {ne}")
    type_id = cursor.number("i", f"type of tensor {name}")
    try:
        ggml_type = GGMLType(type_id)
    except ValueError:
        raise cursor.fail(f"tensor {name} has the unknown ggml type {type_id}") from None
    length = BLOCK_SIZES[ggml_type].length
    if ne[0] % length:
        raise cursor.fail(
            f"tensor {name}: rows of {ne[0]} are not whole {ggml_type.name} blocks of {length}"
        )
    offset = cursor.number("Q", f"offset of tensor {name}")
    return _Info(name, ggml_type, tuple(reversed(ne)), offset)


def _place_tensors(
    cursor: Cursor, path: Path, infos: Iterable[_Info], data_start: int, alignment: int
) -> dict[str, TensorInfo]:
    """Tensors by name in file order, after checking that each has bytes of its own."""
    tensors: dict[str, TensorInfo] = {}
    for info in infos:
        if info.name in tensors:
            raise cursor.fail(f"duplicate tensor {info.name}")
        if info.offset % alignment:
            raise cursor.fail(f"tensor {info.name} is misaligned: {info.offset} % {alignment}")
        start = data_start + info.offset
        if start + info.nbytes > cursor.size:
            raise cursor.fail(
                f"truncated: tensor {info.name} ends at byte {start + info.nbytes} of {cursor.size}"
            )
        tensors[info.name] = TensorInfo(
            info.name, info.type, info.shape, path, start, info.nbytes, cursor.buffer
        )
    _check_overlap(cursor, tensors.values())
    return tensors


def _check_overlap(cursor: Cursor, tensors: Iterable[TensorInfo]) -> None:
    end, owner = 0, ""
    for tensor in sorted(tensors, key=lambda t: t.offset):
        if tensor.offset < end:
            raise cursor.fail(f"tensor {tensor.name} overlaps tensor {owner}")
        end, owner = tensor.offset + tensor.nbytes, tensor.name
