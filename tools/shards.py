"""Models as several files: how tensors are dealt to shards, and what a copied tensor is.

Only the first shard carries the metadata; each later one has the three ``split.*`` keys and its own
tensors. Tensor bytes are copied from the mapping, so any size of model needs little memory.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from gguf_hybrid.weights.metadata import Field, ValueType
from gguf_hybrid.weights.reader import GGUFFile, TensorInfo

from .gguf_writer import Chunk, OutputFile, OutputTensor

SIZE_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
COPY_BYTES = 1 << 22


def parse_size(text: str) -> int:
    """``300M`` as bytes; K, M and G are powers of ten, as in llama.cpp."""
    digits, unit = (text[:-1], text[-1]) if text[-1:] in SIZE_UNITS else (text, "")
    if not digits.isdecimal() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 500M or 2G")
    return int(digits) * SIZE_UNITS.get(unit, 1)


def shard_files(
    path: Path,
    fields: Mapping[str, Field],
    tensors: Sequence[OutputTensor],
    *,
    max_nbytes: int = 0,
    max_tensors: int = 0,
) -> list[OutputFile]:
    """The files to write: ``path`` itself, or shards of it if a limit (0: none) is passed.

    A tensor larger than ``max_nbytes`` gets a shard of its own.
    """
    groups = _groups(tensors, max_nbytes, max_tensors)
    if len(groups) == 1:
        return [OutputFile(path, fields, groups[0])]
    return [
        OutputFile(
            path.with_name(f"{path.stem}-{i + 1:05}-of-{len(groups):05}.gguf"),
            {**(fields if i == 0 else {}), **_split_fields(i, len(groups), len(tensors))},
            group,
        )
        for i, group in enumerate(groups)
    ]


def _groups(
    tensors: Sequence[OutputTensor], max_nbytes: int, max_tensors: int
) -> list[list[OutputTensor]]:
    groups: list[list[OutputTensor]] = [[]]
    nbytes = 0
    for tensor in tensors:
        too_large = max_nbytes and nbytes + tensor.nbytes > max_nbytes
        too_many = max_tensors and len(groups[-1]) >= max_tensors
        if groups[-1] and (too_large or too_many):
            groups.append([])
            nbytes = 0
        groups[-1].append(tensor)
        nbytes += tensor.nbytes
    return groups


def _split_fields(number: int, count: int, n_tensors: int) -> dict[str, Field]:
    return {
        "split.no": Field(number, ValueType.U16),
        "split.count": Field(count, ValueType.U16),
        "split.tensors.count": Field(n_tensors, ValueType.I32),
    }


def copied(tensor: TensorInfo) -> OutputTensor:
    """The tensor as it is."""
    return OutputTensor(tensor.name, tensor.type, tensor.shape, partial(_copy, tensor))


def _copy(tensor: TensorInfo) -> Iterator[Chunk]:
    for start in range(0, tensor.nbytes, COPY_BYTES):
        yield tensor.data[start : start + COPY_BYTES].data
    tensor.drop_pages()


def unsplit_fields(model: GGUFFile) -> dict[str, Field]:
    """The metadata of ``model`` without the keys that belong to its being split."""
    return {key: field for key, field in model.fields.items() if key not in SPLIT_KEYS}
