"""Checkpoints derived from the committed ones: other layouts, dtypes and defects."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf_hybrid.tools.convert_checkpoint import open_checkpoint

CHECKPOINTS = Path(__file__).parents[1] / "data" / "convert"
DENSE, MOE = CHECKPOINTS / "qwen35-tiny", CHECKPOINTS / "qwen35moe-tiny"
DTYPE_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
}
Array = np.ndarray[Any, np.dtype[Any]]


def weights(source: Path) -> dict[str, Array]:
    """All tensors of a checkpoint, as stored."""
    return {name: tensor.read() for name, tensor in open_checkpoint(source).tensors.items()}


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """A safetensors file; the bytes follow the header in the order given."""
    header, offset = {}, 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": DTYPE_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    raw = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values())
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


def copy_small_files(source: Path, target: Path) -> None:
    """Everything of a checkpoint but its weights and their index."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if "safetensors" not in path.name:
            shutil.copy(path, target / path.name)


def single_file(source: Path, target: Path, tensors: Mapping[str, Array]) -> Path:
    """A checkpoint with the small files of ``source`` and the given weights in one file."""
    copy_small_files(source, target)
    write_safetensors(target / "model.safetensors", tensors)
    return target


def full_copy(source: Path, target: Path) -> Path:
    """An identical checkpoint that a test may damage."""
    shutil.copytree(source, target)
    return target


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Load, change in place, store."""
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")


def per_expert(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The same weights with one tensor for each matrix of each expert."""
    result: dict[str, Array] = {}
    for name, array in tensors.items():
        prefix, found, part = name.rpartition(".experts.")
        if not found:
            result[name] = array
            continue
        for i, matrix in enumerate(array):
            if part == "down_proj":
                result[f"{prefix}.experts.{i}.down_proj.weight"] = matrix
            else:
                gate, up = np.split(matrix, 2)
                result[f"{prefix}.experts.{i}.gate_proj.weight"] = gate
                result[f"{prefix}.experts.{i}.up_proj.weight"] = up
    return result


def to_fp8(tensors: Mapping[str, Array], block: int) -> dict[str, Array]:
    """Projections in FP8 with a scale for each (block, block) tile, as the released FP8 models."""
    result: dict[str, Array] = {}
    for name, array in tensors.items():
        if not name.endswith("_proj.weight"):
            result[name] = array
            continue
        high, wide = (-(-n // block) for n in array.shape)
        padded = np.zeros((high * block, wide * block), np.float32)
        padded[: array.shape[0], : array.shape[1]] = array
        tiles = padded.reshape(high, block, wide, block)
        scale = np.abs(tiles).max(axis=(1, 3)) / 448
        scaled = (tiles / scale[:, None, :, None]).reshape(padded.shape)
        cut = scaled[: array.shape[0], : array.shape[1]]
        result[name] = cut.astype(ml_dtypes.float8_e4m3fn)
        result[f"{name}_scale_inv"] = scale.astype(ml_dtypes.bfloat16)
    return result
