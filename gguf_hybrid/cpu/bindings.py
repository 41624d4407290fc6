"""ctypes mirror of ``csrc/model_api.h``: structures and signatures of the fused model operations.

The order and width of every field is that of the C header; the library is always the one built from
it (``ggh_abi_version``). Addresses are plain integers: whoever fills a structure keeps the memory
behind them alive.
"""

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .library import Floats, Pool, Weight, check

SIZES = (
    "n_embd",
    "n_vocab",
    "n_head",
    "n_head_kv",
    "head_dim",
    "n_rot",
    "ssm_group_count",
    "ssm_time_step_rank",
    "ssm_state_size",
    "ssm_conv_kernel",
    "tiled_v_heads",
    "n_expert_used",
)
NUMBERS = ("rms_eps", "attention_scale", "expert_weights_scale")


class Op(IntEnum):
    """``ggh_op``: an operation of a step."""

    EMBED = 0
    DELTA_NET = 1
    ATTEND = 2
    DENSE = 3
    EXPERTS = 4
    LOGITS = 5
    LOAD = 6
    STORE = 7


SECTIONS = (
    "embed",
    "norm",
    "mixer_in",
    "delta_rule",
    "attention",
    "mixer_out",
    "router",
    "ffn_in",
    "ffn_out",
    "logits",
)
"""``ggh_section``: the parts of a step whose time is counted."""


class Sizes(ctypes.Structure):
    """``ggh_model_config``."""

    _fields_ = (
        *((name, c_int32) for name in SIZES),
        *((name, c_float) for name in NUMBERS),
        ("rope_magnitude", c_float),
        ("rope_inv_freq", c_void_p),
    )


def _block(name: str, vectors: str, matrices: str) -> type[ctypes.Structure]:
    """A structure of vector addresses, then matrices."""
    fields = [(vector, c_void_p) for vector in vectors.split()]
    fields += [(matrix, Weight) for matrix in matrices.split()]  # type: ignore[misc]
    return type(name, (ctypes.Structure,), {"_fields_": tuple(fields)})


DeltaNet = _block("DeltaNet", "norm conv dt_bias a ssm_norm", "qkv gate beta alpha out")
Attention = _block("Attention", "norm q_norm k_norm", "q k v out")
Dense = _block("Dense", "norm", "gate up down")
Experts = _block(
    "Experts", "norm", "router gate up down shared_router shared_gate shared_up shared_down"
)
Head = _block("Head", "norm", "output")


class StoreLayout(ctypes.Structure):
    """``ggh_store``: where states and KV lie; strides in bytes."""

    _fields_ = (
        ("states", c_void_p),
        ("state_row_stride", c_int64),
        ("state_layer_stride", c_int64),
        ("kv", c_void_p),
        ("block_stride", c_int64),
        ("block_layer_stride", c_int64),
        ("n_state_rows", c_int32),
        ("n_blocks", c_int32),
        ("kv_half", c_int32),
        ("reserved", c_int32),
    )


SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggh_model_create": (c_int32, (c_void_p, c_int32, POINTER(Sizes), POINTER(c_void_p))),
    "ggh_model_destroy": (None, (c_void_p,)),
    "ggh_model_check": (c_int32, (c_void_p, c_int64, c_void_p)),
    "ggh_model_step": (
        c_int32,
        (c_void_p, POINTER(StoreLayout), c_void_p, c_int64, c_void_p, c_int64, c_void_p),
    ),
    "ggh_model_scratch_bytes": (c_size_t, (c_void_p,)),
    "ggh_model_times": (None, (c_void_p, POINTER(c_uint64))),
    "ggh_argmax": (c_int32, (c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p)),
    "ggh_log_sum_exp": (c_int32, (c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p)),
    "ggh_top_k": (
        c_int32,
        (c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_void_p),
    ),
}


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Give the model functions of a loaded library their signatures."""
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def argmax(pool: Pool, logits: Floats) -> NDArray[np.int32]:
    """The first index of the largest value of each row of ``logits`` [n_rows, n_vocab]."""
    ids = np.empty(len(logits), np.int32)
    status = declare(pool.library.c).ggh_argmax(pool.handle, *_rows(logits), ids.ctypes.data)
    check(status, "argmax")
    return ids


def log_sum_exp(pool: Pool, logits: Floats) -> NDArray[np.float64]:
    """log(sum(exp(row))) of each row."""
    sums = np.empty(len(logits), np.float64)
    status = declare(pool.library.c).ggh_log_sum_exp(pool.handle, *_rows(logits), sums.ctypes.data)
    check(status, "log-sum-exp")
    return sums


def top_k(pool: Pool, logits: Floats, k: int) -> tuple[NDArray[np.int32], Floats]:
    """The k largest of each row in descending order, the lower id first among equals:
    ids and values, each [n_rows, k]."""
    shape = (len(logits), k)
    ids, values = np.empty(shape, np.int32), np.empty(shape, np.float32)
    status = declare(pool.library.c).ggh_top_k(
        pool.handle, *_rows(logits), k, ids.ctypes.data, values.ctypes.data
    )
    check(status, "top-k")
    return ids, values


def _rows(logits: Floats) -> tuple[int, int, int, int]:
    """Address, rows, columns and stride of float32 rows."""
    assert logits.dtype == np.float32 and logits.strides[-1] == 4
    return logits.ctypes.data, *logits.shape, logits.strides[0] // 4
