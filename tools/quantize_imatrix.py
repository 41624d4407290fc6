"""Importance matrices: the mean squared input of each column of a weight, measured on a text.

Both formats of llama.cpp are read: GGUF (``NAME.in_sum2`` and ``NAME.counts``) and the older one
without a header, which starts with a count of entries.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gguf_hybrid.errors import GGUFError
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.metadata import Field, ValueType
from gguf_hybrid.weights.reader import MAGIC, GGUFFile, open_gguf

KEYS = ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")
MAX_TEXT = 127
MAX_NAME = 1 << 16


@dataclass(frozen=True)
class ImportanceMatrix:
    """``entries[name]`` is float32, (columns,) or, for stacked experts, (experts * columns,)."""

    path: Path
    entries: Mapping[str, NDArray[np.float32]]
    dataset: str | None
    n_chunks: int

    def fields(self) -> dict[str, Field]:
        """Provenance as llama-quantize notes it in its output."""
        noted = {"file": Field(str(self.path)[:MAX_TEXT], ValueType.STRING)}
        if self.dataset is not None:
            noted["dataset"] = Field(self.dataset[:MAX_TEXT], ValueType.STRING)
        noted["entries_count"] = Field(len(self.entries), ValueType.U32)
        if self.n_chunks > 0:
            noted["chunks_count"] = Field(self.n_chunks, ValueType.U32)
        return {f"quantize.imatrix.{key}": field for key, field in noted.items()}


def load_imatrix(path: Path) -> ImportanceMatrix:
    """Read either format. Raises GGUFError, one line that names the file and the entry."""
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise GGUFError(f"{path}: cannot be read: {error.strerror or error}") from error
    matrix = _from_gguf(path, open_gguf(path)) if is_gguf else _from_legacy(path)
    if not matrix.entries:
        raise GGUFError(f"{path}: holds no importance matrix")
    for name, values in matrix.entries.items():
        if not np.isfinite(values).all():
            raise GGUFError(f"{path}: entry {name} holds a value that is not finite")
    return matrix


def _from_gguf(path: Path, file: GGUFFile) -> ImportanceMatrix:
    for key in KEYS:
        if key not in file.fields:
            raise GGUFError(f"{path}: key {key} is missing")
    entries: dict[str, NDArray[np.float32]] = {}
    for tensor_name, tensor in file.tensors.items():
        name = tensor_name.removesuffix(".in_sum2")
        if name == tensor_name:
            continue
        counts = file.tensors.get(f"{name}.counts")
        if counts is None or {tensor.type, counts.type} != {GGMLType.F32}:
            raise GGUFError(f"{path}: entry {name} lacks F32 sums and counts")
        n = np.rint(counts.data.view(np.float32))[:, np.newaxis]
        sums = tensor.data.view(np.float32).reshape(len(n), -1)
        mean = np.divide(sums, n, out=np.ones_like(sums), where=n > 0)
        entries[name] = mean.reshape(-1)
    datasets = list(file.metadata[KEYS[0]])  # type: ignore[arg-type]
    n_chunks = int(file.metadata[KEYS[1]])  # type: ignore[arg-type]
    return ImportanceMatrix(path, entries, str(datasets[0]) if datasets else None, n_chunks)


def _from_legacy(path: Path) -> ImportanceMatrix:
    """i32 count; per entry i32 length and name, i32 calls, i32 n, f32[n]; then optionally i32
    chunks, i32 length and the data set's name."""
    with path.open("rb") as file:
        entries: dict[str, NDArray[np.float32]] = {}
        for _ in range(_number(path, file)):
            name = _text(path, file)
            n_calls, n_values = _number(path, file), _number(path, file)
            raw = file.read(4 * n_values) if n_values > 0 else b""
            if len(raw) != 4 * n_values or not raw:
                raise GGUFError(f"{path}: truncated in entry {name}")
            values = np.frombuffer(raw, np.float32)
            entries[name] = values / np.float32(n_calls) if n_calls > 0 else values
        n_chunks = _number(path, file) if file.peek(1) else 0
        dataset = _text(path, file) if file.peek(1) else None
    return ImportanceMatrix(path, entries, dataset or None, n_chunks)


def _number(path: Path, file: BufferedReader) -> int:
    raw = file.read(4)
    if len(raw) != 4:
        raise GGUFError(f"{path}: not an importance matrix, or truncated")
    return int(struct.unpack("<i", raw)[0])


def _text(path: Path, file: BufferedReader) -> str:
    length = _number(path, file)
    raw = file.read(length) if 0 <= length <= MAX_NAME else b""
    if len(raw) != length:
        raise GGUFError(f"{path}: not an importance matrix, or truncated")
    return raw.decode("utf-8", "replace")
