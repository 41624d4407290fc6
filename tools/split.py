"""``gguf-hybrid split`` and ``merge``: one GGUF as several shards, and back.

Only the first shard carries the metadata; each later one has the three ``split.*`` keys and its own
tensors. Tensor bytes are copied from the mapping, so any size of model needs little memory.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from gguf_hybrid.errors import ConfigError, GgufHybridError
from gguf_hybrid.weights.metadata import Field, ValueType
from gguf_hybrid.weights.reader import GGUFFile, TensorInfo, open_gguf

from .gguf_writer import Chunk, OutputFile, OutputTensor, write_files

SIZE_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
DEFAULT_MAX_TENSORS = 128
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


def split_main(argv: Sequence[str] | None = None) -> int:
    """Command line of ``split``; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gguf-hybrid split", description="Split a GGUF file into shards."
    )
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path, help="prefix: shards are PREFIX-00001-of-0000N.gguf")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--split-max-size", type=parse_size, default=0, metavar="N(K|M|G)")
    limit.add_argument("--split-max-tensors", type=int, default=0, metavar="N")
    _add_output_flags(parser)
    return _guarded(parser, argv, _split)


def merge_main(argv: Sequence[str] | None = None) -> int:
    """Command line of ``merge``; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gguf-hybrid merge", description="Join the shards of a split GGUF into one file."
    )
    parser.add_argument("input", type=Path, help="any of the shards")
    parser.add_argument("output", type=Path)
    _add_output_flags(parser)
    return _guarded(parser, argv, _merge)


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="overwrite existing output")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written")


def _guarded(parser: argparse.ArgumentParser, argv, run) -> int:  # type: ignore[no-untyped-def]
    args = parser.parse_args(argv)
    try:
        files = run(args)
        for file in files:
            print(f"{file.path}: {len(file.tensors)} tensors, {file.nbytes / 1e6:.1f} MB")
        if not args.dry_run:
            total = sum(tensor.nbytes for file in files for tensor in file.tensors)
            with tqdm(total=total, unit="B", unit_scale=True, disable=None) as bar:
                write_files(files, force=args.force, progress=bar.update)
    except GgufHybridError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


def _split(args: argparse.Namespace) -> list[OutputFile]:
    model = open_gguf(args.input)
    if len(model.paths) > 1:
        raise ConfigError(f"{args.input} is split already; merge it first")
    max_tensors = args.split_max_tensors
    if not args.split_max_size and not max_tensors:
        max_tensors = DEFAULT_MAX_TENSORS
    tensors = [copied(tensor) for tensor in model.tensors.values()]
    prefix = args.output.with_name(args.output.name.removesuffix(".gguf") + ".gguf")
    return shard_files(
        prefix,
        unsplit_fields(model),
        tensors,
        max_nbytes=args.split_max_size,
        max_tensors=max_tensors,
    )


def _merge(args: argparse.Namespace) -> list[OutputFile]:
    model = open_gguf(args.input)
    if len(model.paths) == 1:
        raise ConfigError(f"{args.input} is not split")
    tensors = [copied(tensor) for tensor in model.tensors.values()]
    return [OutputFile(args.output, unsplit_fields(model), tensors)]
