"""The compiled quantiser, by way of ctypes: float rows to ggml blocks.

ctypes lets go of the interpreter lock during a call, so plain threads fill the cores. The bytes do
not depend on how the rows are split.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np

from gguf_hybrid.weights.ggml import GGMLType, row_nbytes

from .library import load

NOT_FINITE = 3


class NotFiniteError(ValueError):
    """A weight that is infinite or not a number."""


@cache
def load_quantizer() -> Any:
    """The library's entry point. Raises BackendError if this installation has no library."""
    function = load().c.ggh_quantize_rows
    number, pointer, count = ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [number, pointer, number, pointer, count, count, pointer]
    function.restype = number
    return function


def quantize_rows(
    rows: np.ndarray[Any, np.dtype[Any]],
    source: GGMLType,
    target: GGMLType,
    importance: np.ndarray[Any, np.dtype[np.float32]] | None = None,
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Blocks of ``target`` for ``rows``, (n, k) float32, or (n, k) uint16 holding F16 or BF16 bits.

    ``importance`` is (k,) float32 or None. Returns (n, bytes of a row) uint8.
    Raises NotFiniteError.
    """
    n_rows, k = rows.shape
    assert rows.flags.c_contiguous and rows.itemsize == (4 if source is GGMLType.F32 else 2)
    assert importance is None or (importance.shape == (k,) and importance.flags.c_contiguous)
    out = np.empty((n_rows, row_nbytes(target, k)), np.uint8)
    status = load_quantizer()(
        source,
        rows.ctypes.data,
        target,
        out.ctypes.data,
        n_rows,
        k,
        None if importance is None else importance.ctypes.data,
    )
    if status == NOT_FINITE:
        raise NotFiniteError
    assert status == 0, f"ggh_quantize_rows refused {source.name} to {target.name}: {status}"
    return out
