"""Inputs of the quantiser tests, exact on every machine: integers scaled by powers of two.

What llama.cpp makes of them is recorded in tests/data/convert/quantize_records.json (b11434).
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf_hybrid.tools.gguf_writer import OutputFile, OutputTensor, write_files
from gguf_hybrid.tools.shards import copied
from numpy.typing import NDArray

from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.metadata import Field, ValueType
from gguf_hybrid.weights.reader import GGUFFile

N_ROWS, N_COLUMNS = 96, 1024
UNMEASURED = "blk.3.attn_k.weight"


def scrambled(n: int, seed: int) -> NDArray[np.int64]:
    """n integers below 2^31 without a visible pattern."""
    x = np.arange(n, dtype=np.uint64) + np.uint64(seed * 1_000_003 + 1)
    for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9):
        x = (x ^ (x >> np.uint64(29))) * np.uint64(factor)
    return (x >> np.uint64(33)).astype(np.int64)


def hard_rows() -> NDArray[np.float32]:
    """(96, 1024): bell-shaped weights with every kind of degenerate group among them."""
    h = scrambled(4 * N_ROWS * N_COLUMNS, 1).reshape(4, -1)
    bell = (h % 4096 - 2048).sum(axis=0)
    groups = np.ldexp(bell.astype(np.float64), -12).reshape(-1, 32)
    groups *= np.exp2(scrambled(len(groups), 2) % 9 - 4)[:, np.newaxis]
    kind = scrambled(len(groups), 3) % 20
    groups[kind == 0] = 0
    groups[kind == 1] = np.abs(groups[kind == 1])
    groups[kind == 2] = -np.abs(groups[kind == 2])
    groups[kind == 3] = 0.375
    groups[kind == 4] = -0.375
    groups[kind == 5] *= 2.0**-40
    groups[kind == 6] *= 2.0**-60
    groups[kind == 7] *= 2.0**-110
    groups[kind == 8, 1:] = 0
    groups[kind == 9] = np.sign(groups[kind == 9])
    groups[kind == 10] += 100
    groups[kind == 11, ::7] *= 4096
    groups[kind == 12] = np.round(groups[kind == 12])
    groups.reshape(-1)[:512] = 0
    return groups.reshape(N_ROWS, N_COLUMNS).astype(np.float32)


def importance_row(n: int, seed: int) -> NDArray[np.float32]:
    """n weights from 0 (a few) to 2^12, heavily skewed."""
    h = scrambled(n, seed)
    values = np.ldexp(1.0 + h % 1024 / 1024, (h >> 12) % 16 - 4)
    values[h % 41 == 0] = 0
    return values.astype(np.float32)


def importance_sums(model: GGUFFile) -> dict[str, NDArray[np.float32]]:
    """Sums of squares for the blocks' matrices but one: (1 or experts, columns)."""
    sums = {}
    for i, (name, tensor) in enumerate(model.tensors.items()):
        if len(tensor.shape) < 2 or not name.startswith("blk.") or name == UNMEASURED:
            continue
        n = tensor.shape[0] if len(tensor.shape) == 3 else 1
        values = importance_row(n * tensor.shape[-1], i + 10)
        sums[name] = values.reshape(n, -1)
    return sums


def write_imatrix(model: GGUFFile, path: Path) -> None:
    """An importance matrix in the GGUF format; expert 1 of every stack was never used."""
    fields = {
        "general.type": Field("imatrix", ValueType.STRING),
        "imatrix.datasets": Field(
            np.array(["calibration.txt"], object), ValueType.ARRAY, ValueType.STRING
        ),
        "imatrix.chunk_count": Field(7, ValueType.U32),
        "imatrix.chunk_size": Field(512, ValueType.U32),
    }
    arrays: dict[str, NDArray[np.float32]] = {}
    for name, sums in importance_sums(model).items():
        counts = np.full((len(sums), 1), 3584, np.float32)
        if len(sums) > 1:
            counts[1] = 0
        arrays[f"{name}.in_sum2"], arrays[f"{name}.counts"] = sums, counts
    tensors = [_float_tensor(name, array) for name, array in arrays.items()]
    write_files([OutputFile(path, fields, tensors)], force=True)


def _float_tensor(name: str, array: NDArray[np.float32]) -> OutputTensor:
    return OutputTensor(name, GGMLType.F32, array.shape, lambda: [array.tobytes()])


def write_legacy_imatrix(model: GGUFFile, path: Path) -> None:
    """The same in the older format: 7 calls each."""
    out = bytearray()
    sums = importance_sums(model)
    out += struct.pack("<i", len(sums))
    for name, values in sums.items():
        out += struct.pack("<i", len(name)) + name.encode()
        out += struct.pack("<ii", 7, values.size) + values.tobytes()
    out += struct.pack("<ii", 7, 15) + b"calibration.txt"
    path.write_bytes(out)


def with_fields(model: GGUFFile, changes: Mapping[str, int], path: Path) -> None:
    """A copy of the model whose metadata claims other numbers."""
    fields = dict(model.fields)
    for key, value in changes.items():
        fields[key] = fields[key]._replace(value=value)
    tensors = [copied(tensor) for tensor in model.tensors.values()]
    write_files([OutputFile(path, fields, tensors)], force=True)
