"""``gguf-hybrid split``: one GGUF file as several shards, for hosts that limit file sizes."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gguf_hybrid.errors import ConfigError, GgufHybridError
from gguf_hybrid.weights.reader import open_gguf

from .gguf_writer import OutputFile, write_files
from .shards import copied, parse_size, shard_files, unsplit_fields

DEFAULT_MAX_TENSORS = 128


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code. Errors are one line on stderr."""
    args = _parser().parse_args(argv)
    try:
        files = split(args.input, args.output, args.split_max_size, args.split_max_tensors)
        for file in files:
            print(file)
        if not args.dry_run:
            write_files(files, force=args.force)
    except GgufHybridError as error:
        print(f"gguf-hybrid split: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gguf-hybrid split", description="Split a GGUF file into shards."
    )
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path, help="prefix of PREFIX-00001-of-0000N.gguf")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--split-max-size", type=parse_size, default=0, metavar="N(K|M|G)")
    limit.add_argument("--split-max-tensors", type=int, default=0, metavar="N")
    parser.add_argument("--force", action="store_true", help="overwrite existing output")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written")
    return parser


def split(
    source: Path, prefix: Path, max_nbytes: int = 0, max_tensors: int = 0
) -> list[OutputFile]:
    """The shards to write; without a limit each holds 128 tensors, as llama-gguf-split's."""
    model = open_gguf(source)
    if len(model.paths) > 1:
        raise ConfigError(f"{source} is split already; merge it first")
    return shard_files(
        prefix.with_name(prefix.name.removesuffix(".gguf") + ".gguf"),
        unsplit_fields(model),
        [copied(tensor) for tensor in model.tensors.values()],
        max_nbytes=max_nbytes,
        max_tensors=max_tensors if max_tensors or max_nbytes else DEFAULT_MAX_TENSORS,
    )


if __name__ == "__main__":
    sys.exit(main())
