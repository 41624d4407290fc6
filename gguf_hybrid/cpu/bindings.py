"""ctypes mirror of ``csrc/model_api.h``: structures and signatures of the fused model operations.

The order and width of every field is that of the C header; the library is always the one built from
it (``ggh_abi_version``). Addresses are plain integers: whoever fills a structure keeps the memory
behind them alive.
"""

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from enum import IntEnum
from typing import Any

from .library import Weight

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
