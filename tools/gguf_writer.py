"""GGUF files, written tensor by tensor: the tools' only way to put a model on disk.

Every file appears under its final name complete or not at all: bytes go to a hidden neighbour that
is renamed at the end, and a set of shards is renamed only after all of them are written. A tensor's
bytes are asked for when its turn comes, so memory holds one chunk, never a model.
"""

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from gguf_hybrid.errors import ConfigError, GGUFError
from gguf_hybrid.weights.ggml import GGMLType, row_nbytes
from gguf_hybrid.weights.metadata import DTYPES, Field, StringArray, Value, ValueType
from gguf_hybrid.weights.reader import DEFAULT_ALIGNMENT, MAGIC, MAX_NAME_BYTES

VERSION = 3
Chunk = bytes | memoryview


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to write. ``shape`` is in numpy order; ``chunks`` yields its bytes, in order."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[Chunk]]

    @property
    def nbytes(self) -> int:
        """Bytes in the file without padding."""
        return row_nbytes(self.type, self.shape[-1]) * prod(self.shape[:-1])


@dataclass(frozen=True)
class OutputFile:
    """One GGUF file to write: a whole model or one shard of it."""

    path: Path
    fields: Mapping[str, Field]
    tensors: Sequence[OutputTensor]

    @property
    def alignment(self) -> int:
        """``general.alignment``, 32 when the key is absent."""
        entry = self.fields.get("general.alignment")
        return DEFAULT_ALIGNMENT if entry is None else int(str(entry.value))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors, padding included."""
        return sum(padded(tensor.nbytes, self.alignment) for tensor in self.tensors)

    def __str__(self) -> str:
        return f"{self.path}: {len(self.tensors)} tensors, {self.nbytes / 1e6:.1f} MB"


def padded(nbytes: int, alignment: int = DEFAULT_ALIGNMENT) -> int:
    """``nbytes`` rounded up to whole ``alignment`` units."""
    return -(-nbytes // alignment) * alignment


def write_files(files: Sequence[OutputFile], *, force: bool) -> None:
    """Write all ``files``, then give them their names; a progress bar is shown on a terminal.

    Raises ConfigError if a file exists and ``force`` is off, GGUFError if one cannot be written.
    """
    for file in files:
        if file.path.exists() and not force:
            raise ConfigError(f"{file.path} exists; pass --force to overwrite it")
    parts = [_part_path(file.path) for file in files]
    total = sum(tensor.nbytes for file in files for tensor in file.tensors)
    try:
        with tqdm(total=total, unit="B", unit_scale=True, disable=None) as bar:
            for file, part in zip(files, parts, strict=True):
                with _reporting(file.path), part.open("xb") as out:
                    _write(out, file, bar.update)
        for file, part in zip(files, parts, strict=True):
            with _reporting(file.path):
                part.replace(file.path)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _part_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


@contextmanager
def _reporting(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GGUFError(f"{path}: cannot be written: {error.strerror or error}") from error


def _write(out: BinaryIO, file: OutputFile, progress: Callable[[int], object]) -> None:
    header = encode_header(file)
    out.write(header)
    out.write(bytes(padded(len(header), file.alignment) - len(header)))
    for tensor in file.tensors:
        written = 0
        for chunk in tensor.chunks():
            written += out.write(chunk)
            progress(len(chunk))
        assert written == tensor.nbytes, f"{tensor.name}: {written} bytes, not {tensor.nbytes}"
        out.write(bytes(padded(written, file.alignment) - written))


def encode_header(file: OutputFile) -> bytes:
    """Everything before the tensor data, without the padding that follows it."""
    out = bytearray(MAGIC)
    out += struct.pack("<IQQ", VERSION, len(file.tensors), len(file.fields))
    for key, field in file.fields.items():
        out += _encode_string(key)
        out += encode_field(field)
    offset = 0
    for tensor in file.tensors:
        name = tensor.name.encode()
        if len(name) > MAX_NAME_BYTES:
            raise GGUFError(f"tensor name {tensor.name} is longer than {MAX_NAME_BYTES} bytes")
        out += _encode_string(tensor.name)
        out += struct.pack("<I", len(tensor.shape))
        out += struct.pack(f"<{len(tensor.shape)}q", *reversed(tensor.shape))
        out += struct.pack("<iQ", tensor.type, offset)
        offset += padded(tensor.nbytes, file.alignment)
    return bytes(out)


def encode_field(field: Field) -> bytes:
    """The bytes of one metadata value, its type tag first."""
    if field.type is not ValueType.ARRAY:
        return struct.pack("<i", field.type) + _encode_scalar(field.value, field.type)
    assert field.item_type is not None and isinstance(field.value, StringArray | np.ndarray)
    head = struct.pack("<iiQ", field.type, field.item_type, len(field.value))
    if field.item_type is ValueType.STRING:
        return head + b"".join(map(_encode_string, field.value))
    assert isinstance(field.value, np.ndarray)
    return head + field.value.astype(DTYPES[field.item_type]).tobytes()


def _encode_scalar(value: Value, value_type: ValueType) -> bytes:
    if value_type is ValueType.STRING:
        return _encode_string(str(value))
    return np.asarray(value, DTYPES[value_type]).tobytes()


def _encode_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
