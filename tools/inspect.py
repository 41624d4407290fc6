"""``gguf-hybrid inspect``: what is in a GGUF file, and what serving it takes.

Reads the header only. A readable file that is no model this project serves is still shown, with
the reason; only a file that cannot be read ends with exit code 1.
"""

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import GGUFError
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.layout import check_tensors
from gguf_hybrid.weights.metadata import Field, StringArray
from gguf_hybrid.weights.reader import GGUFFile, TensorInfo, open_gguf
from gguf_hybrid.weights.repack import layout_of

from .check import problems
from .diff import differences

MAX_ITEMS = 8
MAX_TEXT = 60
KV_BLOCK = 256
SLOTS = (1, 2, 4, 8, 16, 32)
GIB = 1 << 30
UNITS = ("KiB", "MiB", "GiB", "TiB")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the description; 0, or 1 with one line on standard error.

    ``--diff`` and ``--check`` end with 1 if they find something.
    """
    args = _parser().parse_args(argv)
    try:
        gguf = open_gguf(args.file)
        if args.diff is not None:
            return _findings(differences(open_gguf(args.diff), gguf), "no differences")
        if args.check:
            return _findings(problems(gguf), "no problems")
        description = describe(gguf, args.memory)
    except GGUFError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.json:
        _print(json.dumps(description, ensure_ascii=False, indent=2))
    else:
        _print("\n".join(_lines(description)))
    return 0


def _findings(lines: Iterable[str], none: str) -> int:
    """Print what was found, or that nothing was; the exit code says which."""
    found = list(lines)
    _print("\n".join(found) or none)
    return 1 if found else 0


def _print(text: str) -> None:
    """Print, and take it calmly when the reader (``head``, say) has seen enough."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gguf-hybrid inspect", description="Show a GGUF file.")
    parser.add_argument("file", help="a GGUF file, or any shard of a split one")
    parser.add_argument("--json", action="store_true", help="machine-readable, all of it")
    parser.add_argument(
        "--memory", type=_gibibytes, metavar="GiB", help="show what fits into this much memory"
    )
    deep = parser.add_mutually_exclusive_group()
    deep.add_argument("--diff", metavar="A", help="show what differs between A and the file")
    deep.add_argument("--check", action="store_true", help="read every value and say what is wrong")
    return parser


def _gibibytes(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def describe(gguf: GGUFFile, memory: float | None = None) -> dict[str, Any]:
    """Everything that is shown, as plain JSON values; sizes in bytes, ``memory`` in GiB."""
    return {
        "files": [str(path) for path in gguf.paths],
        "version": gguf.version,
        "nbytes": gguf.nbytes,
        "metadata": {key: _describe_field(entry) for key, entry in gguf.fields.items()},
        "types": _describe_types(gguf.tensors.values()),
        "tensors": [_describe_tensor(tensor) for tensor in gguf.tensors.values()],
        "model": _describe_model(gguf, memory),
    }


def _describe_field(entry: Field) -> dict[str, Any]:
    value = entry.value
    if entry.item_type is None:
        return {"type": entry.type.name.lower(), "value": value}
    assert isinstance(value, np.ndarray | StringArray)
    first = value[:MAX_ITEMS]
    return {
        "type": f"array[{entry.item_type.name.lower()}]",
        "length": len(value),
        "first": first if isinstance(first, list) else first.tolist(),
    }


def _describe_types(tensors: Iterable[TensorInfo]) -> list[dict[str, Any]]:
    by_type: dict[GGMLType, list[TensorInfo]] = defaultdict(list)
    for tensor in tensors:
        by_type[tensor.type].append(tensor)
    groups = sorted(by_type.items(), key=lambda item: -sum(t.nbytes for t in item[1]))
    return [
        {
            "type": ggml_type.name,
            "tensors": len(group),
            "weights": sum(t.size for t in group),
            "nbytes": sum(t.nbytes for t in group),
        }
        for ggml_type, group in groups
    ]


def _describe_tensor(tensor: TensorInfo) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "type": tensor.type.name,
        "shape": list(tensor.shape),
        "nbytes": tensor.nbytes,
        "file": str(tensor.file),
        "offset": tensor.offset,
    }


def _describe_model(gguf: GGUFFile, memory: float | None) -> dict[str, Any]:
    """The configuration and what it takes to run; or why the file cannot be served."""
    try:
        config = ModelConfig.from_metadata(gguf.metadata, gguf.tensors, str(gguf.path))
        trunk = check_tensors(config, gguf.tensors, str(gguf.path)).trunk
    except GGUFError as error:
        return {"unsupported": str(error)}
    weights = sum(tensor.nbytes for tensor in trunk.values())
    description = {
        "config": asdict(config),
        "parameters": sum(tensor.size for tensor in trunk.values()),
        "weights_nbytes": weights,
        "mlx_weights_nbytes": sum(_mlx_nbytes(tensor) for tensor in trunk.values()),
        "state_nbytes_per_slot": config.state_nbytes,
        "kv_nbytes_per_token": config.kv_nbytes_per_token(),
    }
    if memory is not None:
        description["fits"] = fitting_contexts(config, weights, int(memory * GIB))
    return description


def _mlx_nbytes(tensor: TensorInfo) -> int:
    """Bytes as affine matrices with f32 scales; dense float types stay as they are."""
    if tensor.type in (GGMLType.F32, GGMLType.F16, GGMLType.BF16):
        return tensor.nbytes
    return int(tensor.size * layout_of(tensor.type).bits_per_weight() / 8)


def fitting_contexts(config: ModelConfig, weights_nbytes: int, memory: int) -> list[dict[str, int]]:
    """``slots`` and the ``n_ctx`` that each of them can have; 0 where not even one block fits.

    ``memory`` bytes hold the weights, one recurrent state per slot, and an f16 KV cache in blocks
    of 256 tokens. Activations and the program itself need some 200 MB besides.
    """
    contexts = []
    for slots in SLOTS:
        free = memory - weights_nbytes - slots * config.state_nbytes
        blocks = free // (slots * config.kv_nbytes_per_token() * KV_BLOCK)
        n_ctx = min(max(0, blocks * KV_BLOCK), config.n_ctx_train)
        contexts.append({"slots": slots, "n_ctx": n_ctx})
    return contexts


def _lines(description: Mapping[str, Any]) -> Iterable[str]:
    yield f"file        {description['files'][0]}"
    if len(description["files"]) > 1:
        yield f"shards      {len(description['files'])}"
    yield f"version     {description['version']}"
    yield f"tensors     {len(description['tensors'])}, {_size(description['nbytes'])}"
    yield from _model_lines(description["model"])
    yield from ("", "types")
    for group in description["types"]:
        bits = group["nbytes"] * 8 / group["weights"]
        yield (
            f"  {group['type']:8} {group['tensors']:5} tensors {_size(group['nbytes']):>12}"
            f"  {bits:.2f} bits per weight"
        )
    yield from ("", "metadata")
    for key, entry in description["metadata"].items():
        yield f"  {key} ({entry['type']}) = {_shown_field(entry)}"
    yield from ("", "tensor data")
    for tensor in description["tensors"]:
        shape = " x ".join(map(str, tensor["shape"]))
        yield f"  {tensor['name']:40} {tensor['type']:8} {shape:22} {_size(tensor['nbytes']):>12}"


def _model_lines(model: Mapping[str, Any]) -> Iterable[str]:
    if "unsupported" in model:
        yield f"not served  {model['unsupported']}"
        return
    config = model["config"]
    n_recurrent = sum(config["recurrent_layers"])
    yield (
        f"model       {config['arch']}, {model['parameters']:,} parameters,"
        f" {config['n_layer']} layers ({n_recurrent} Gated DeltaNet,"
        f" {config['n_layer'] - n_recurrent} attention)"
    )
    yield f"MTP blocks  {config['n_nextn']}"
    yield f"context     {config['n_ctx_train']} tokens trained"
    yield (
        f"weights     {_size(model['weights_nbytes'])} as stored,"
        f" {_size(model['mlx_weights_nbytes'])} as MLX matrices with f32 scales"
    )
    yield f"state       {_size(model['state_nbytes_per_slot'])} per slot"
    yield f"KV cache    {_size(model['kv_nbytes_per_token'])} per token (f16)"
    for fit in model.get("fits", ()):
        shown = f"{fit['n_ctx']} tokens of context each" if fit["n_ctx"] else "does not fit"
        yield f"  slots {fit['slots']:2}  {shown}"


def _shown_field(entry: Mapping[str, Any]) -> str:
    if "value" in entry:
        text = repr(entry["value"])
        return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."
    more = ", ..." if entry["length"] > len(entry["first"]) else ""
    items = ", ".join(repr(item) for item in entry["first"])
    return f"[{items}{more}] ({entry['length']})"


def _size(nbytes: int) -> str:
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min((nbytes.bit_length() - 1) // 10, len(UNITS))
    return f"{nbytes / 1024**power:.1f} {UNITS[power - 1]}"
