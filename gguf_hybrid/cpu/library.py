"""The compiled CPU library: finds it, checks its version, gives its C interface Python signatures.

`csrc/ggh.h` is the documentation of every call. Arrays are NumPy arrays or anything else that has
an address; the library holds no reference after a call returns, and ctypes releases the GIL while
it runs. A missing library is an ordinary state of the package (`find` returns None).
"""

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_float, c_int8, c_int32, c_int64, c_size_t, c_void_p
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gguf_hybrid.errors import BackendError
from gguf_hybrid.weights.ggml import GGMLType

ABI_VERSION = 1
FILE_NAMES = ("libggh.so", "libggh.dylib")

Floats = NDArray[np.float32]


class Mode(IntEnum):
    """``ggh_mode``: the arithmetic of quantised weights (``--arithmetic``)."""

    EXACT = 0
    FAST = 1


class Status(IntEnum):
    """``ggh_status``."""

    OK = 0
    BAD_TYPE = 1
    BAD_SIZE = 2
    BAD_ARGUMENT = 3
    NO_MEMORY = 4


MEANINGS = {
    Status.BAD_TYPE: "a ggml type without a CPU kernel",
    Status.BAD_SIZE: "a size that the kernel does not support",
    Status.BAD_ARGUMENT: "a missing array or an index out of range",
    Status.NO_MEMORY: "out of memory",
}


class Weight(ctypes.Structure):
    """``ggh_weight``: a matrix [n, k] of GGUF blocks, or ``n_slabs`` of them (experts).

    ``data`` is an address: whoever fills it keeps the memory alive.
    """

    _fields_ = (
        ("data", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("row_stride", c_size_t),
        ("n_slabs", c_int64),
        ("slab_stride", c_size_t),
        ("type", c_int32),
        ("reserved", c_int32),
    )


PRODUCT = (c_int32, POINTER(Weight), POINTER(c_void_p), POINTER(c_int64))
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggh_abi_version": (c_int32, ()),
    "ggh_cpu_variant": (c_char_p, ()),
    "ggh_cpu_problem": (c_char_p, ()),
    "ggh_pool_create": (c_void_p, (c_int32,)),
    "ggh_pool_destroy": (None, (c_void_p,)),
    "ggh_pool_limit": (c_int32, (c_void_p, c_int32)),
    "ggh_block_size": (c_int64, (c_int32,)),
    "ggh_row_bytes": (c_size_t, (c_int32, c_int64)),
    "ggh_dequantize_rows": (
        c_int32,
        (c_void_p, POINTER(Weight), c_void_p, c_int64, c_void_p, c_int64),
    ),
    "ggh_quantize_activations": (
        c_int32,
        (c_void_p, c_int64, c_int64, c_int64, c_int64, POINTER(c_int8), POINTER(c_float)),
    ),
    "ggh_matmul": (c_int32, (c_void_p, c_int32, c_void_p, c_int64, c_int64, *PRODUCT)),
    "ggh_matmul_experts": (
        c_int32,
        (c_void_p, c_int32, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, *PRODUCT),
    ),
}


def find() -> Path | None:
    """The library that was built into the package, or the one ``GGH_LIBRARY`` names."""
    named = os.environ.get("GGH_LIBRARY")
    if named:
        return Path(named)
    candidates = (Path(__file__).with_name(name) for name in FILE_NAMES)
    return next((path for path in candidates if path.exists()), None)


def load(path: Path | None = None) -> "Library":
    """The library at ``path`` or where `find` finds it. BackendError when it cannot be used."""
    path = path or find()
    if path is None:
        raise BackendError("the CPU library was not built with this install (no compiler found)")
    try:
        return Library(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        raise BackendError(f"{path}: not a usable CPU library: {error}") from error


def check(status: int, action: str) -> None:
    """BackendError unless ``status`` is OK; ``action`` names what was tried."""
    if status != Status.OK:
        raise BackendError(f"{action}: {MEANINGS[Status(status)]}")


class Library:
    """The loaded library. ``c`` has the declared C functions."""

    def __init__(self, c: ctypes.CDLL) -> None:
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
        found = c.ggh_abi_version()
        if found != ABI_VERSION:
            raise BackendError(
                f"{c._name}: interface version {found}, this package needs {ABI_VERSION};"
                " install it again"
            )
        self.c = c

    @cached_property
    def variant(self) -> str:
        """The instruction set in use, for example ``avx512``."""
        return str(self.c.ggh_cpu_variant().decode())

    @cached_property
    def problem(self) -> str | None:
        """Why ``GGH_CPU`` was not followed, if it was not."""
        text = self.c.ggh_cpu_problem()
        return None if text is None else text.decode()

    def types(self) -> frozenset[GGMLType]:
        """The weight types that have kernels."""
        return frozenset(t for t in GGMLType if self.c.ggh_block_size(int(t)))

    def supports(self, ggml_type: int, k: int) -> bool:
        """Whether rows of ``k`` weights of this type have kernels."""
        return bool(self.c.ggh_row_bytes(ggml_type, k))

    def weight(self, ggml_type: int, blocks: NDArray[np.uint8], k: int) -> Weight:
        """Blocks of shape (n, row bytes) or (n_slabs, n, row bytes), rows contiguous, as a weight.

        The caller keeps ``blocks`` alive.
        """
        row_bytes = self.c.ggh_row_bytes(ggml_type, k)
        if row_bytes == 0:
            raise BackendError(f"no CPU kernel for rows of {k} weights of ggml type {ggml_type}")
        assert blocks.shape[-1] == row_bytes and blocks.strides[-1] == 1
        n_slabs = blocks.shape[0] if blocks.ndim == 3 else 1
        return Weight(
            data=blocks.ctypes.data,
            n=blocks.shape[-2],
            k=k,
            row_stride=blocks.strides[-2],
            n_slabs=n_slabs,
            slab_stride=blocks.strides[0] if blocks.ndim == 3 else 0,
            type=ggml_type,
        )

    def quantize_activations(self, x: Floats, block: int) -> tuple[NDArray[np.int8], Floats]:
        """int8 codes (m, k) and scales (m, k / block) that a fast product sees of ``x`` (m, k)."""
        m, k = x.shape
        codes = np.empty((m, k), np.int8)
        scales = np.empty((m, k // block), np.float32)
        status = self.c.ggh_quantize_activations(
            x.ctypes.data,
            _row_stride(x),
            m,
            k,
            block,
            codes.ctypes.data_as(POINTER(c_int8)),
            scales.ctypes.data_as(POINTER(c_float)),
        )
        check(status, "quantize activations")
        return codes, scales


class Pool:
    """``ggh_pool``: the threads of one engine and the products they run. Not for two callers."""

    def __init__(self, library: Library, n_threads: int) -> None:
        """``n_threads`` counts the calling thread."""
        self.library = library
        self.handle = library.c.ggh_pool_create(n_threads)
        if not self.handle:
            raise BackendError(f"cannot start {n_threads} CPU threads")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads; the pool must not be used afterwards."""
        self.library.c.ggh_pool_destroy(self.handle)
        self.handle = None

    def limit(self, n_threads: int) -> None:
        """Lets at most ``n_threads`` take part from now on."""
        check(
            self.library.c.ggh_pool_limit(self.handle, n_threads), f"limit to {n_threads} threads"
        )

    def dequantize_rows(self, weight: Weight, rows: NDArray[np.int64]) -> Floats:
        """float32 (len(rows), k): the exact values of these rows."""
        out = np.empty((len(rows), weight.k), np.float32)
        status = self.library.c.ggh_dequantize_rows(
            self.handle, weight, rows.ctypes.data, len(rows), out.ctypes.data, weight.k
        )
        check(status, "dequantize rows")
        return out

    def matmul(self, mode: Mode, x: Floats, weights: Sequence[Weight]) -> list[Floats]:
        """x (m, k) @ w.T (k, n) for each weight; x is prepared once."""
        results = [np.empty((len(x), weight.n), np.float32) for weight in weights]
        status = self.library.c.ggh_matmul(
            self.handle,
            mode,
            x.ctypes.data,
            _row_stride(x),
            len(x),
            *_product(weights, results),
        )
        check(status, "multiply")
        return results

    def matmul_experts(
        self,
        mode: Mode,
        x: Floats,
        expert_ids: NDArray[np.int32],
        x_rows: NDArray[np.int32],
        weights: Sequence[Weight],
    ) -> list[Floats]:
        """Row p of each result: expert ``expert_ids[p]`` of the weight times ``x[x_rows[p]]``."""
        assert expert_ids.shape == x_rows.shape
        results = [np.empty((len(x_rows), weight.n), np.float32) for weight in weights]
        status = self.library.c.ggh_matmul_experts(
            self.handle,
            mode,
            x.ctypes.data,
            _row_stride(x),
            len(x),
            len(x_rows),
            expert_ids.ctypes.data,
            x_rows.ctypes.data,
            *_product(weights, results),
        )
        check(status, "multiply experts")
        return results


def _row_stride(x: Floats) -> int:
    """Elements between the rows of x, whose columns are contiguous."""
    assert x.ndim == 2 and x.dtype == np.float32
    if len(x) < 2:  # NumPy leaves the strides of such axes open
        return int(x.shape[1])
    assert x.strides[1] == x.itemsize
    return int(x.strides[0] // x.itemsize)


def _product(weights: Sequence[Weight], results: Sequence[Floats]) -> tuple[Any, ...]:
    """The last arguments of a product: weights, results and their strides as C arrays."""
    n = len(weights)
    addresses = (result.ctypes.data for result in results)
    strides = (result.shape[1] for result in results)
    return n, (Weight * n)(*weights), (c_void_p * n)(*addresses), (c_int64 * n)(*strides)
