"""A small model cut out of a file: first blocks, fewer experts, a part of the vocabulary.

Every kernel meets the file's own blocks and the model's own widths, while memory and time stay
small. Nothing is copied: a cut tensor is a shorter view of the mapped file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.weights.ggml import row_nbytes
from gguf_hybrid.weights.reader import TensorInfo

N_VOCAB = 8192
N_EXPERT = 16
VOCABULARY = ("token_embd.weight", "output.weight")


@dataclass(frozen=True)
class Excerpt:
    """The numbers and tensors of the small model, and what was left out, in words."""

    config: ModelConfig
    tensors: Mapping[str, TensorInfo]
    note: str


def first_blocks(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> Excerpt:
    """The blocks up to the first one of each kind, the rest of the model whole."""
    kinds = config.recurrent_layers
    n_layer = 1 + max(kinds.index(kind) for kind in set(kinds))
    kept = {name: t for name, t in tensors.items() if _block_of(name) < n_layer}
    small = replace(config, n_layer=n_layer, n_nextn=0, recurrent_layers=kinds[:n_layer])
    return Excerpt(small, kept, f"{n_layer} of {config.n_layer} blocks")


def cut_down(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> Excerpt:
    """``first_blocks`` with at most N_EXPERT experts and N_VOCAB tokens."""
    blocks = first_blocks(config, tensors)
    n_vocab = min(config.n_vocab, N_VOCAB)
    n_expert = min(config.n_expert, max(N_EXPERT, config.n_expert_used))
    small = replace(blocks.config, n_vocab=n_vocab, n_expert=n_expert)
    kept = {
        name: _cut(tensor, _rows_kept(name, tensor, n_vocab, n_expert))
        for name, tensor in blocks.tensors.items()
    }
    experts = f", {n_expert} of {config.n_expert} experts" if config.is_moe else ""
    note = f"{blocks.note}{experts}, {n_vocab} of {config.n_vocab} tokens"
    return Excerpt(small, kept, note)


def _rows_kept(name: str, tensor: TensorInfo, n_vocab: int, n_expert: int) -> int:
    """Length of the first axis in the excerpt."""
    rows = tensor.shape[0]
    if name in VOCABULARY:
        return n_vocab
    if len(tensor.shape) == 3 or name.endswith(("ffn_gate_inp.weight", "_exps.scale")):
        return min(rows, n_expert)
    return rows


def _cut(tensor: TensorInfo, rows: int) -> TensorInfo:
    """The first ``rows`` of the first axis."""
    if rows == tensor.shape[0]:
        return tensor
    nbytes = tensor.nbytes // tensor.shape[0] * rows
    assert nbytes % row_nbytes(tensor.type, tensor.shape[-1]) == 0
    return replace(tensor, shape=(rows, *tensor.shape[1:]), nbytes=nbytes)


def _block_of(name: str) -> int:
    """The block a tensor belongs to; -1 for those outside."""
    return int(name.split(".")[1]) if name.startswith("blk.") else -1
