"""``gguf-hybrid merge``: the shards of a split GGUF as one file."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gguf_hybrid.errors import ConfigError, GgufHybridError
from gguf_hybrid.weights.reader import open_gguf

from .gguf_writer import OutputFile, write_files
from .shards import copied, unsplit_fields


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code. Errors are one line on stderr."""
    args = _parser().parse_args(argv)
    try:
        file = merge(args.input, args.output)
        print(file)
        if not args.dry_run:
            write_files([file], force=args.force)
    except GgufHybridError as error:
        print(f"gguf-hybrid merge: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gguf-hybrid merge", description="Join the shards of a split GGUF into one file."
    )
    parser.add_argument("input", type=Path, help="any of the shards")
    parser.add_argument("output", type=Path)
    parser.add_argument("--force", action="store_true", help="overwrite existing output")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written")
    return parser


def merge(source: Path, target: Path) -> OutputFile:
    """The one file to write in place of all shards that ``source`` belongs to."""
    model = open_gguf(source)
    if len(model.paths) == 1:
        raise ConfigError(f"{source} is not split")
    tensors = [copied(tensor) for tensor in model.tensors.values()]
    return OutputFile(target, unsplit_fields(model), tensors)


if __name__ == "__main__":
    sys.exit(main())
