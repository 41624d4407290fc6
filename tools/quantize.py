"""``gguf-hybrid quantize``: a float GGUF to a smaller one, byte for byte llama-quantize's.

Slabs of rows are converted by a few threads and written in order, so memory stays far below the
model's size. The conversion itself is compiled (`gguf_hybrid.cpu.quantizer`).
"""

import argparse
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np

from gguf_hybrid.cpu.quantizer import NotFiniteError, load_quantizer, quantize_rows
from gguf_hybrid.errors import ConfigError, GGUFError, GgufHybridError
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.metadata import Field, ValueType
from gguf_hybrid.weights.reader import GGUFFile, TensorInfo, open_gguf

from .gguf_writer import Chunk, OutputFile, OutputTensor, write_files
from .quantize_imatrix import ImportanceMatrix, load_imatrix
from .quantize_types import ALIASES, FLOATS, MIXES, QUANTIZABLE, Mix, Overrides, target_types
from .shards import copied, unsplit_fields

SLAB_ELEMENTS = 1 << 19
MAX_WAITING = 64
QUANTIZATION_VERSION = 2
MOVED_KEYS = ("general.quantization_version", "general.file_type")


def quantize(
    model: GGUFFile,
    mix: Mix,
    pool: ThreadPoolExecutor,
    overrides: Overrides = Overrides(),  # noqa: B008 (frozen)
    imatrix: ImportanceMatrix | None = None,
) -> tuple[dict[str, Field], list[OutputTensor]]:
    """Metadata and tensors of the quantised ``model``; ``pool`` works when they are written.

    Raises ConfigError or GGUFError, one line that names the tensor.
    """
    types = target_types(model, mix, overrides, has_imatrix=imatrix is not None)
    tensors = []
    for name, target in types.items():
        tensor = model.tensors[name]
        shape = _significant(tensor.shape)
        if target is tensor.type:
            tensors.append(replace(copied(tensor), shape=shape))
            continue
        if tensor.type not in FLOATS:
            raise ConfigError(f"tensor {name} is {tensor.type.name}: already quantised")
        importance = _importance(tensor, imatrix)
        chunks = partial(_chunks, tensor, target, importance, pool)
        tensors.append(OutputTensor(name, target, shape, chunks))
    return _fields(model, mix, imatrix), tensors


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without leading axes of length 1, which llama-quantize does not write."""
    leading = next((i for i, n in enumerate(shape) if n > 1), len(shape) - 1)
    return shape[leading:]


def _fields(model: GGUFFile, mix: Mix, imatrix: ImportanceMatrix | None) -> dict[str, Field]:
    fields = {k: v for k, v in unsplit_fields(model).items() if k not in MOVED_KEYS}
    fields["general.quantization_version"] = Field(QUANTIZATION_VERSION, ValueType.U32)
    fields["general.file_type"] = Field(mix.file_type, ValueType.U32)
    return fields | (imatrix.fields() if imatrix is not None else {})


def _importance(
    tensor: TensorInfo, imatrix: ImportanceMatrix | None
) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """(matrices, columns): one row of weights for each matrix of a stack; None if not measured."""
    values = None if imatrix is None else imatrix.entries.get(tensor.name)
    if values is None:
        return None
    n_matrices = tensor.shape[0] if len(tensor.shape) == 3 else 1
    if values.size != n_matrices * tensor.shape[-1]:
        if tensor.name == "token_embd.weight":
            return None
        raise GGUFError(
            f"importance of tensor {tensor.name} has {values.size} values,"
            f" expected {n_matrices * tensor.shape[-1]}"
        )
    return np.ascontiguousarray(values, np.float32).reshape(n_matrices, -1)


def _chunks(
    tensor: TensorInfo,
    target: GGMLType,
    importance: np.ndarray[Any, np.dtype[np.float32]] | None,
    pool: ThreadPoolExecutor,
) -> Iterator[Chunk]:
    waiting: deque[Future[np.ndarray[Any, np.dtype[np.uint8]]]] = deque()
    for matrix, rows in _slabs(tensor):
        weights = None if importance is None else importance[matrix]
        waiting.append(pool.submit(quantize_rows, rows, tensor.type, target, weights))
        if len(waiting) > MAX_WAITING:
            yield _result(tensor, waiting.popleft())
    while waiting:
        yield _result(tensor, waiting.popleft())
    tensor.drop_pages()


def _slabs(tensor: TensorInfo) -> Iterator[tuple[int, np.ndarray[Any, np.dtype[Any]]]]:
    """Rows as stored, with the index of their matrix; a slab never crosses two matrices."""
    dtype = np.float32 if tensor.type is GGMLType.F32 else np.uint16
    n_rows, k = tensor.shape[-2:]
    matrices = tensor.data.view(dtype).reshape(-1, n_rows, k)
    step = max(1, SLAB_ELEMENTS // k)
    for i, matrix in enumerate(matrices):
        for start in range(0, n_rows, step):
            yield i, matrix[start : start + step]


def _result(tensor: TensorInfo, future: Future[np.ndarray[Any, np.dtype[np.uint8]]]) -> Chunk:
    try:
        return future.result().data.cast("B")
    except NotFiniteError:
        raise GGUFError(f"tensor {tensor.name} holds a value that is not finite") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code. Errors are one line on stderr."""
    args = _parser().parse_args(argv)
    try:
        load_quantizer()
        _run(args)
    except GgufHybridError as error:
        print(f"gguf-hybrid quantize: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gguf-hybrid quantize", description="Quantise a GGUF file of float weights."
    )
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("type", type=_mix, metavar="TYPE", help=", ".join([*MIXES, *ALIASES]))
    parser.add_argument("--pure", action="store_true", help="one type, no mix")
    parser.add_argument(
        "--tensor-type",
        action="append",
        default=[],
        type=_tensor_type,
        metavar="NAME=TYPE",
        help="type of the tensors whose name matches the regular expression NAME",
    )
    for flag in ("--output-tensor-type", "--token-embedding-type"):
        parser.add_argument(flag, type=_ggml_type, metavar="TYPE")
    parser.add_argument("--imatrix", type=Path, help="importance matrix, GGUF or the older format")
    parser.add_argument("--threads", type=int, default=cpu_count() or 1)
    parser.add_argument("--force", action="store_true", help="overwrite existing output")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written")
    parser.add_argument("--verbose", action="store_true", help="list every tensor")
    return parser


def _mix(text: str) -> Mix:
    name = text.upper()
    if (name := ALIASES.get(name, name)) not in MIXES:
        raise argparse.ArgumentTypeError(f"unknown type {text}")
    return MIXES[name]


def _ggml_type(text: str) -> GGMLType:
    ggml_type = GGMLType.__members__.get(text.upper())
    if ggml_type not in QUANTIZABLE:
        names = ", ".join(sorted(t.name for t in QUANTIZABLE))
        raise argparse.ArgumentTypeError(f"cannot quantise to {text} (types: {names})")
    return ggml_type


def _tensor_type(text: str) -> tuple[re.Pattern[str], GGMLType]:
    name, _, type_name = text.partition("=")
    if not name or not type_name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=TYPE")
    try:
        return re.compile(name.lower()), _ggml_type(type_name)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{name!r} is no regular expression: {error}") from None


def _run(args: argparse.Namespace) -> None:
    model = open_gguf(args.input)
    if args.output.exists() and args.output.samefile(args.input):
        raise ConfigError(f"{args.output}: input and output are the same file")
    imatrix = load_imatrix(args.imatrix) if args.imatrix else None
    overrides = Overrides(
        args.pure, args.output_tensor_type, args.token_embedding_type, args.tensor_type
    )
    with ThreadPoolExecutor(max(1, args.threads)) as pool:
        fields, tensors = quantize(model, args.type, pool, overrides, imatrix)
        _report(args, model, tensors)
        if not args.dry_run:
            write_files([OutputFile(args.output, fields, tensors)], force=args.force)


def _report(args: argparse.Namespace, model: GGUFFile, tensors: Sequence[OutputTensor]) -> None:
    if args.verbose:
        for tensor in tensors:
            before = model.tensors[tensor.name].type.name
            print(f"{tensor.name:40} {before:5} -> {tensor.type.name}")
    nbytes = sum(tensor.nbytes for tensor in tensors)
    n_weights = sum(tensor.size for tensor in model.tensors.values())
    print(
        f"{args.output}: {args.type.name}, {model.nbytes / 1e6:.1f} MB -> {nbytes / 1e6:.1f} MB"
        f" ({8 * nbytes / n_weights:.2f} bits per weight)"
    )


if __name__ == "__main__":
    sys.exit(main())
