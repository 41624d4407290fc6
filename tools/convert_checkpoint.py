"""Hugging Face checkpoints on disk: config.json and the safetensors shards, read slab by slab.

Only the headers are read when a checkpoint is opened. A tensor's rows come from the file when they
are asked for, with plain reads: a mapping would count as resident memory. FP8 weights with a block
scale next to them (``weight_scale_inv``) are widened to float32 here, so nothing above knows FP8.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from gguf_hybrid.errors import ConfigError, GGUFError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

MAX_HEADER_BYTES = 100_000_000
SLAB_ELEMENTS = 1 << 22
SCALE_SUFFIX = "_scale_inv"

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F64": np.dtype(np.float64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
FP8 = ("F8_E4M3", "F8_E5M2")


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of a shard; with ``scale`` its float32 value is weight times block scale."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    scale: "SourceTensor | None" = None
    scale_block: tuple[int, int] = (1, 1)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one entry of the leading axis; a scalar counts as one row."""
        return self.shape[1:]

    def read(self) -> Array:
        """The whole tensor: float32, or float16 or bfloat16 as stored."""
        return self.rows(0, self.shape[0]) if self.shape else self._stored(0, 1).reshape(())

    def rows(self, start: int, stop: int) -> Array:
        """Entries ``start`` to ``stop`` of the leading axis, in the dtype `read` gives."""
        stored = self._stored(start, stop)
        if self.dtype in FP8:
            stored = stored.astype(np.float32) * self._scales(start, stop)
        elif self.dtype == "F64":
            stored = stored.astype(np.float32)
        return stored

    def slabs(self) -> Iterator[Array]:
        """The tensor in consecutive pieces of the leading axis, a few million weights each."""
        if not self.shape:
            yield self.read()
            return
        step = max(1, SLAB_ELEMENTS // max(1, prod(self.row_shape)))
        for start in range(0, self.shape[0], step):
            yield self.rows(start, min(start + step, self.shape[0]))

    def _stored(self, start: int, stop: int) -> Array:
        dtype = DTYPES[self.dtype]
        row = prod(self.row_shape)
        count = (stop - start) * row
        values = np.fromfile(
            self.file, dtype, count, offset=self.offset + start * row * dtype.itemsize
        )
        if values.size != count:
            raise GGUFError(f"{self.file}: truncated inside tensor {self.name}")
        return values.reshape(stop - start, *self.row_shape)

    def _scales(self, start: int, stop: int) -> Array:
        """Scale of each weight of the rows, from blocks over the last two axes."""
        if self.scale is None:
            raise GGUFError(f"{self.file}: FP8 tensor {self.name} has no {SCALE_SUFFIX} tensor")
        scale = self.scale.read().astype(np.float32)
        high, wide = self.scale_block
        if scale.size == 1:
            return scale.reshape(())
        if len(self.shape) == 2:
            scale = scale[np.arange(start, stop) // high]
        else:
            scale = np.repeat(scale[start:stop], high, axis=-2)[..., : self.shape[-2], :]
        return np.repeat(scale, wide, axis=-1)[..., : self.shape[-1]]


@dataclass(frozen=True)
class Checkpoint:
    """A model directory. ``tensors`` are in llama.cpp's order: by shard, then by name."""

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]


def open_checkpoint(path: Path) -> Checkpoint:
    """Read config.json and all safetensors headers of the directory ``path``.

    Raises ConfigError if a file is missing, GGUFError if one is damaged; both name the file.
    """
    if not path.is_dir():
        raise ConfigError(f"{path}: not a directory (nor a Hugging Face repository user/name)")
    config = read_json(path / "config.json")
    tensors: dict[str, SourceTensor] = {}
    for shard in _shards(path):
        tensors |= _read_header(shard)
    _check_index(path, tensors)
    return Checkpoint(path, config, _attach_scales(path, config, tensors))


@contextmanager
def malformed(path: Path, names: str) -> Iterator[None]:
    """Inside, a JSON value of another kind than expected becomes a GGUFError that says in which
    of the files ``names`` of the checkpoint it is to be looked for."""
    try:
        yield
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise GGUFError(f"{path}: {names} is malformed: {reason}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``. Raises ConfigError if it is missing, GGUFError if damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise GGUFError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise GGUFError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise GGUFError(f"{path}: holds {type(value).__name__}, not a JSON object")
    return value


def _weight_map(path: Path) -> dict[str, str] | None:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return None
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise GGUFError(f"{index}: has no weight_map")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise GGUFError(f"{index}: tensor {name} is in {shard!r}, which is no file name")
    return weight_map


def _shards(path: Path) -> list[Path]:
    weight_map = _weight_map(path)
    if weight_map is None:
        names = sorted(p.name for p in path.glob("model*.safetensors"))
    else:
        names = sorted(set(weight_map.values()))
    if not names:
        raise ConfigError(f"{path}: holds no model*.safetensors file")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise ConfigError(f"{path}: shard {missing[0]} is missing")
    return [path / name for name in names]


def _check_index(path: Path, tensors: Mapping[str, SourceTensor]) -> None:
    weight_map = _weight_map(path)
    if weight_map is None:
        return
    for name in weight_map.keys() - tensors.keys():
        raise GGUFError(f"{path / weight_map[name]}: tensor {name} of the index is missing")
    for name in tensors.keys() - weight_map.keys():
        raise GGUFError(f"{tensors[name].file}: tensor {name} is not in the index")


def _read_header(shard: Path) -> dict[str, SourceTensor]:
    size = shard.stat().st_size
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise GGUFError(f"{shard}: truncated: no complete safetensors header")
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise GGUFError(f"{shard}: the safetensors header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise GGUFError(f"{shard}: the safetensors header is not a JSON object")
    header.pop("__metadata__", None)
    return {name: _entry(shard, name, header[name], 8 + length, size) for name in sorted(header)}


def _entry(shard: Path, name: str, entry: Any, data_start: int, size: int) -> SourceTensor:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        start, end = (data_start + int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise GGUFError(f"{shard}: tensor {name} has a damaged header entry") from None
    if dtype not in DTYPES:
        raise GGUFError(
            f"{shard}: tensor {name} has the dtype {dtype} (supported: {', '.join(DTYPES)})"
        )
    if end - start != prod(shape) * DTYPES[dtype].itemsize or start < data_start:
        raise GGUFError(f"{shard}: tensor {name} of shape {list(shape)} has {end - start} bytes")
    if end > size:
        raise GGUFError(f"{shard}: truncated: tensor {name} ends at byte {end} of {size}")
    return SourceTensor(name, dtype, shape, shard, start)


def _attach_scales(
    path: Path, config: Mapping[str, Any], tensors: dict[str, SourceTensor]
) -> dict[str, SourceTensor]:
    """Fold FP8 block scales into their weights; other quantised checkpoints are refused."""
    quantization = config.get("quantization_config")
    if quantization is None:
        return tensors
    method = quantization.get("quant_method")
    if method != "fp8":
        raise ConfigError(f"{path / 'config.json'}: quant_method {method} is not supported (fp8)")
    high, wide = quantization.get("weight_block_size") or (1, 1)
    folded: dict[str, SourceTensor] = {}
    for name, tensor in tensors.items():
        if name.endswith((SCALE_SUFFIX, "activation_scale")):
            continue
        scale = tensors.get(name + SCALE_SUFFIX)
        folded[name] = replace(tensor, scale=scale, scale_block=(high, wide))
    return folded
