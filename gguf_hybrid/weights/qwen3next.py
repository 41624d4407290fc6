"""The one thing qwen3next files store differently: ``ssm_ba``, betas and alphas interleaved.

Rows are [r betas, r alphas] per K head, with r V heads to a K head. Whole rows of any type can be
moved without decoding, so the two matrices are cut out of it once, into memory of their own.
"""

import mmap
from collections.abc import Mapping
from dataclasses import replace

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import GGUFError

from .reader import TensorInfo

FUSED_NAME = "ssm_ba.weight"


def split_beta_alpha(
    config: ModelConfig, tensors: Mapping[str, TensorInfo], source: str
) -> dict[str, TensorInfo]:
    """``tensors`` with each ``ssm_ba`` replaced by ``ssm_beta`` and ``ssm_alpha``.

    Both are (V heads, n_embd) with V heads in grouped order, as the rest of such a file.
    """
    result = dict(tensors)
    shape = (2 * config.ssm_time_step_rank, config.n_embd)
    for i in config.delta_net_layers:
        fused = result.pop(f"blk.{i}.{FUSED_NAME}", None)
        if fused is None:
            continue
        if fused.shape != shape:
            raise GGUFError(
                f"{source}: tensor {fused.name} has the shape {fused.shape}, expected {shape}"
            )
        for part, name in enumerate(("ssm_beta.weight", "ssm_alpha.weight")):
            result[f"blk.{i}.{name}"] = _cut(config, fused, part, f"blk.{i}.{name}")
    return result


def _cut(config: ModelConfig, fused: TensorInfo, part: int, name: str) -> TensorInfo:
    rows = fused.data.reshape(config.ssm_group_count, 2, -1)[:, part].tobytes()
    memory = mmap.mmap(-1, len(rows))
    memory.write(rows)
    shape = (config.ssm_time_step_rank, config.n_embd)
    return replace(
        fused, name=name, shape=shape, offset=0, nbytes=len(rows), mapping=memory, in_file=False
    )
