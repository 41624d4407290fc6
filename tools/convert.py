"""``gguf-hybrid convert``: a Hugging Face checkpoint of Qwen3.5/3.6 to one or more GGUF files.

Runs without torch and holds a few slabs of weights at a time. The output is llama.cpp's, byte for
byte; docs/convert.md lists the few cases where it is meant to differ.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import ConfigError, GGUFError, GgufHybridError
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.layout import expected_mtp_tensors, expected_tensors
from gguf_hybrid.weights.metadata import Field

from .convert_checkpoint import Array, Checkpoint, SourceTensor, malformed, open_checkpoint
from .convert_metadata import (
    architecture,
    general_fields,
    linear_heads,
    model_fields,
    text_hparams,
)
from .convert_tensors import (
    PlannedTensor,
    Selection,
    count_mtp_layers,
    plan_tensors,
    text_name,
)
from .convert_vocab import vocab_fields
from .gguf_writer import Chunk, OutputTensor, write_files
from .shards import parse_size, shard_files

FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
TENSOR_TYPES = {
    "f32": GGMLType.F32,
    "f16": GGMLType.F16,
    "q8_0": GGMLType.Q8_0,
    "bf16": GGMLType.BF16,
}
FLOAT_DTYPES = {
    GGMLType.F32: np.dtype(np.float32),
    GGMLType.F16: np.dtype(np.float16),
    GGMLType.BF16: np.dtype(ml_dtypes.bfloat16),
}
ALWAYS_F32 = (
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "ssm_conv1d.weight",
    "_norm.weight",
)
REPO_ID = re.compile(r"[\w.-]+/[\w.-]+")
REPO_FILES = ["*.json", "*.jinja", "*.safetensors", "README.md"]
PIECE_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Model:
    """A converted model, not yet written."""

    fields: dict[str, Field]
    tensors: list[OutputTensor]
    outtype: str
    n_skipped: int


def convert(
    checkpoint: Checkpoint, outtype: str, *, mtp: str = "with", repo_id: str | None = None
) -> Model:
    """Plan the conversion of ``checkpoint``; weights are read when the tensors are written.

    ``mtp``: ``with``, ``without`` or ``only`` the multi-token prediction block.
    Raises ConfigError or GGUFError, one line that names the file, key or tensor.
    """
    path = checkpoint.path
    with malformed(path, "config.json"):
        arch = architecture(path, checkpoint.config)
        hparams = text_hparams(path, checkpoint.config)
        n_mtp = 0 if mtp == "without" else count_mtp_layers(checkpoint.tensors)
        if mtp == "only" and n_mtp == 0:
            raise ConfigError(f"{path}: the checkpoint has no MTP layers (--mtp-only)")
        selection = Selection(hparams.count("num_hidden_layers"), n_mtp, mtp == "only")
        planned = plan_tensors(
            checkpoint.tensors, linear_heads(hparams), selection, hparams.get("num_experts", 0)
        )
    text = [tensor for tensor in checkpoint.tensors.values() if text_name(tensor.name)]
    if outtype == "auto":
        outtype = guess_outtype(text)
    fields = general_fields(path, arch, planned, repo_id)
    with malformed(path, "config.json"):
        fields |= model_fields(arch, hparams, n_mtp, FILE_TYPES[outtype])
    fields |= vocab_fields(path, checkpoint.config)
    _check(path / "config.json", fields, planned, mtp_only=mtp == "only")
    tensors = [_output(tensor, outtype) for tensor in planned]
    return Model(fields, tensors, outtype, len(checkpoint.tensors) - len(text))


def _check(
    source: Path, fields: Mapping[str, Field], planned: Sequence[PlannedTensor], *, mtp_only: bool
) -> None:
    """Compare weights and configuration; ModelConfig is the engine's own reading of the keys."""
    shapes = {tensor.name: tensor.shape for tensor in planned}
    values = {key: field.value for key, field in fields.items()}
    # An MTP-only file is no model; a name of the trunk lets its numbers be read all the same.
    names = {*shapes, "blk.0.attn_norm.weight"} if mtp_only else shapes.keys()
    config = ModelConfig.from_metadata(values, names, str(source))
    expected = {} if mtp_only else expected_tensors(config)
    expected |= expected_mtp_tensors(config)
    for name, shape in expected.items():
        if name not in shapes:
            raise GGUFError(f"{source}: the weights lack tensor {name}")
        if prod(shapes[name]) != prod(shape) or shapes[name][-1] != shape[-1]:
            raise GGUFError(
                f"{source}: tensor {name} should have the shape {shape}, has {shapes[name]}"
            )


def guess_outtype(tensors: Sequence[SourceTensor]) -> str:
    """The 16-bit type of the first weight that has one, f16 if none has."""
    for tensor in tensors:
        if len(tensor.shape) >= 2 and tensor.dtype in ("BF16", "F16"):
            return tensor.dtype.lower()
    return "f16"


def tensor_type(name: str, shape: Sequence[int], outtype: str) -> GGMLType:
    """llama.cpp's choice: vectors and small gates stay float32, rows Q8_0 cannot hold are F16."""
    if len(shape) <= 1 or name.endswith(ALWAYS_F32) or not name.endswith(".weight"):
        return GGMLType.F32
    if outtype == "q8_0" and shape[-1] % 32:
        return GGMLType.F16
    return TENSOR_TYPES[outtype]


def _output(tensor: PlannedTensor, outtype: str) -> OutputTensor:
    ggml_type = tensor_type(tensor.name, tensor.shape, outtype)
    return OutputTensor(tensor.name, ggml_type, tensor.shape, partial(_chunks, tensor, ggml_type))


def _chunks(tensor: PlannedTensor, ggml_type: GGMLType) -> Iterator[Chunk]:
    row = tensor.shape[-1] if tensor.shape else 1
    step = max(1, PIECE_ELEMENTS // row)
    for slab in tensor.slabs():
        rows = slab.reshape(-1, row)
        for start in range(0, len(rows), step):
            yield encode(rows[start : start + step], ggml_type)


def encode(rows: Array, ggml_type: GGMLType) -> Chunk:
    """Float rows (n, k) as the bytes of F32, F16, BF16 or Q8_0; floats round to nearest even."""
    if ggml_type is GGMLType.Q8_0:
        stored = gguf.quantize(rows.astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
    elif rows.dtype == FLOAT_DTYPES[ggml_type]:
        stored = rows
    else:
        with np.errstate(over="ignore"):
            stored = rows.astype(np.float32).astype(FLOAT_DTYPES[ggml_type])
    return np.ascontiguousarray(stored).view(np.uint8).data.cast("B")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code. Errors are one line on stderr."""
    args = _parser().parse_args(argv)
    try:
        _run(args)
    except GgufHybridError as error:
        print(f"gguf-hybrid convert: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gguf-hybrid convert", description="Convert a Hugging Face checkpoint to GGUF."
    )
    parser.add_argument("source", help="checkpoint directory or Hugging Face user/name")
    parser.add_argument("--outtype", choices=[*FILE_TYPES, "auto"], default="auto")
    parser.add_argument(
        "--outfile", type=Path, help="file or directory; {ftype} stands for the output type"
    )
    parser.add_argument(
        "--split-max-size", type=parse_size, default=0, metavar="N(K|M|G)", help="size of a shard"
    )
    mtp = parser.add_mutually_exclusive_group()
    for flag, value in (("--no-mtp", "without"), ("--mtp-only", "only")):
        mtp.add_argument(flag, dest="mtp", action="store_const", const=value, default="with")
    parser.add_argument("--force", action="store_true", help="overwrite existing output")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written")
    parser.add_argument("--verbose", action="store_true", help="list every tensor")
    return parser


def _run(args: argparse.Namespace) -> None:
    path, repo_id = _source(args.source)
    model = convert(open_checkpoint(path), args.outtype, mtp=args.mtp, repo_id=repo_id)
    out = _output_path(args, path, repo_id, model)
    files = shard_files(out, model.fields, model.tensors, max_nbytes=args.split_max_size)
    if model.n_skipped:
        print(f"skipped {model.n_skipped} tensors that are not part of the text model (vision)")
    if args.verbose:
        for tensor in model.tensors:
            shape = list(reversed(tensor.shape))
            print(f"{tensor.name:40} {tensor.type.name:5} {shape}")
    for file in files:
        print(file)
    if not args.dry_run:
        write_files(files, force=args.force)


def _source(source: str) -> tuple[Path, str | None]:
    """The checkpoint's directory, and its repository id if it had to be fetched."""
    if Path(source).exists() or not REPO_ID.fullmatch(source):
        return Path(source), None
    import huggingface_hub  # a second of import time that local conversions need not pay
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        fetched = huggingface_hub.snapshot_download(source, allow_patterns=REPO_FILES)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ConfigError(f"{source}: cannot be fetched: {first_line}") from error
    return Path(fetched), source


def _output_path(args: argparse.Namespace, path: Path, repo_id: str | None, model: Model) -> Path:
    """llama.cpp's default name, ``--outfile`` with its templates filled, or a name inside it."""
    name = _default_name(model, "mtp-" if args.mtp == "only" else "")
    if args.outfile is None:
        return Path(name) if repo_id else path / name
    if args.outfile.is_dir():
        return Path(args.outfile / name)
    filled = gguf.fill_templated_filename(args.outfile.name, model.outtype)
    return Path(args.outfile.parent / filled)


def _default_name(model: Model, prefix: str) -> str:
    texts = {
        key: entry.value for key, entry in model.fields.items() if isinstance(entry.value, str)
    }
    name = gguf.naming_convention(
        texts["general.name"],
        texts.get("general.basename"),
        texts.get("general.finetune"),
        texts.get("general.version"),
        None if prefix else texts.get("general.size_label"),
        model.outtype,
    )
    return f"{prefix}{name}.gguf"


if __name__ == "__main__":
    sys.exit(main())
