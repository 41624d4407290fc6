"""What differs between two GGUF files: ``inspect --diff A B``.

Metadata is compared with its types, tensors with their bytes; where the bytes or types differ, the
weights are decoded and their relative error is shown.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from gguf_hybrid.weights.ggml import row_nbytes
from gguf_hybrid.weights.metadata import Field, StringArray
from gguf_hybrid.weights.quants import dequantize
from gguf_hybrid.weights.reader import GGUFFile, TensorInfo

MAX_SHOWN = 60
SLAB_WEIGHTS = 1 << 22


def differences(a: GGUFFile, b: GGUFFile) -> Iterator[str]:
    """One line a difference; nothing for files with equal content (order does not count)."""
    for key in _union(a.fields, b.fields):
        yield from _compare_fields(key, a.fields.get(key), b.fields.get(key))
    for name in _union(a.tensors, b.tensors):
        yield from _compare_tensors(name, a.tensors.get(name), b.tensors.get(name))


def _union(a: Iterable[str], b: Iterable[str]) -> list[str]:
    """Keys of both in the order of the first file, then what only the second has."""
    return list(dict.fromkeys([*a, *b]))


def _compare_fields(key: str, a: Field | None, b: Field | None) -> Iterator[str]:
    if a is None or b is None:
        only = a or b
        assert only is not None
        yield f"key {key}: only in {'A' if b is None else 'B'}: {_shown(only)}"
    elif _kind(a) != _kind(b):
        yield f"key {key}: {_kind(a)} in A, {_kind(b)} in B"
    elif isinstance(a.value, np.ndarray | StringArray):
        assert isinstance(b.value, np.ndarray | StringArray)
        yield from _compare_arrays(key, list(a.value), list(b.value))
    elif a.value != b.value:
        yield f"key {key}: {_shown(a)} in A, {_shown(b)} in B"


def _compare_arrays(key: str, a: list[object], b: list[object]) -> Iterator[str]:
    if len(a) != len(b):
        yield f"key {key}: {len(a)} elements in A, {len(b)} in B"
    changed = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    if changed:
        i = changed[0]
        first = f"first [{i}]: {a[i]!r} in A, {b[i]!r} in B"
        yield f"key {key}: {len(changed)} elements differ, {first}"


def _kind(field: Field) -> str:
    item = f"[{field.item_type.name}]" if field.item_type is not None else ""
    return field.type.name + item


def _shown(field: Field) -> str:
    text = repr(field.value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _compare_tensors(name: str, a: TensorInfo | None, b: TensorInfo | None) -> Iterator[str]:
    if a is None or b is None:
        yield f"tensor {name}: only in {'A' if b is None else 'B'}"
        return
    if a.shape != b.shape:
        yield f"tensor {name}: shape {list(a.shape)} in A, {list(b.shape)} in B"
    if a.type is not b.type:
        yield f"tensor {name}: {a.type.name} in A, {b.type.name} in B{_error(a, b)}"
    elif a.nbytes == b.nbytes and not np.array_equal(a.data, b.data):
        n_bytes = np.count_nonzero(a.data != b.data)
        yield f"tensor {name}: {n_bytes} of {a.nbytes} bytes differ{_error(a, b)}"


def _error(a: TensorInfo, b: TensorInfo) -> str:
    """RMS of the difference relative to the RMS of A, for tensors of one size."""
    if a.size != b.size or a.shape[-1] != b.shape[-1]:
        return ""
    difference, reference = 0.0, 0.0
    for x, y in zip(_slabs(a), _slabs(b), strict=True):
        difference += float(np.square(x - y, dtype=np.float64).sum())
        reference += float(np.square(x, dtype=np.float64).sum())
    return f", relative RMS error {(difference / reference) ** 0.5:.3g}" if reference else ""


def _slabs(tensor: TensorInfo) -> Iterator[NDArray[np.float32]]:
    """The weights in float32, a few million at a time, as (rows, k)."""
    k = tensor.shape[-1]
    n_rows, step = tensor.size // k, max(1, SLAB_WEIGHTS // k)
    rows = tensor.data.reshape(n_rows, row_nbytes(tensor.type, k))
    for start in range(0, n_rows, step):
        slab = rows[start : start + step]
        yield dequantize(slab.reshape(-1), tensor.type, (len(slab), k))
