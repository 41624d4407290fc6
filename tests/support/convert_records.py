"""Records of what llama.cpp's converter and quantiser wrote, and the comparison with our files.

A record (tests/data/convert/records) holds each metadata key with its types and value (long values
as the SHA-256 of their compact JSON) and each tensor with shape (ggml order), type and SHA-256.
Run as a program to write all the files and print the comparison as a Markdown table.
"""

import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gguf_hybrid.tools.convert import main as convert_main
from gguf_hybrid.tools.quantize import main as quantize_main

from gguf_hybrid.weights.metadata import Field, ValueType
from gguf_hybrid.weights.reader import GGUFFile, open_gguf

DATA = Path(__file__).parents[1] / "data" / "convert"
RECORDS = DATA / "records"
TYPE_NAMES = {
    ValueType.U8: "UINT8",
    ValueType.I8: "INT8",
    ValueType.U16: "UINT16",
    ValueType.I16: "INT16",
    ValueType.U32: "UINT32",
    ValueType.I32: "INT32",
    ValueType.F32: "FLOAT32",
    ValueType.U64: "UINT64",
    ValueType.I64: "INT64",
    ValueType.F64: "FLOAT64",
}
LONG = 256


def record_names() -> list[str]:
    """All records, as ``CHECKPOINT.STEP-TYPE``."""
    return sorted(path.stem for path in RECORDS.glob("*.json"))


def load_record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return record


def differences(record: dict[str, Any], model: GGUFFile) -> Iterator[str]:
    """Every way in which ``model`` is not the recorded file, order included."""
    metadata = {key: _described(field) for key, field in model.fields.items()}
    yield from _compared("key", record["metadata"], metadata)
    tensors = {
        tensor.name: {
            "shape": list(reversed(tensor.shape)),
            "type": tensor.type.name,
            "sha256": hashlib.sha256(tensor.data.data).hexdigest(),
        }
        for tensor in model.tensors.values()
    }
    yield from _compared("tensor", record["tensors"], tensors)


def _compared(kind: str, want: dict[str, Any], have: dict[str, Any]) -> Iterator[str]:
    for name in want.keys() | have.keys():
        if want.get(name) != have.get(name):
            yield f"{kind} {name}: {have.get(name)}, expected {want.get(name)}"
    if want.keys() == have.keys() and list(want) != list(have):
        yield f"{kind}s are in another order"


def _described(field: Field) -> dict[str, Any]:
    types = [TYPE_NAMES.get(field.type, field.type.name)]
    if field.item_type is not None:
        types.append(TYPE_NAMES.get(field.item_type, field.item_type.name))
    value: Any = field.value
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif not isinstance(value, str | int | float | bool):
        value = list(value)
    if isinstance(value, str | list) and len(value) > LONG:
        compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        digest = hashlib.sha256(compact.encode()).hexdigest()
        value = {"sha256_of_json": digest, "length": len(value)}
    return {"types": types, "value": value}


def write(name: str, directory: Path) -> Path:
    """The file that belongs to a record, written by ``convert`` or ``quantize``."""
    checkpoint, _, step = name.partition(".")
    tool, _, target = step.partition("-")
    path = directory / f"{name}.gguf"
    if tool == "convert":
        arguments = [str(DATA / checkpoint), "--outfile", str(path), "--outtype", target]
        code = convert_main(arguments)
    else:
        source = directory / f"{checkpoint}.convert-bf16.gguf"
        code = quantize_main([str(source), str(path), target])
    assert code == 0, name
    return path


def table() -> Iterator[str]:
    """Markdown: for each record the number of keys and tensors that were compared."""
    yield "| record | keys | tensors | equal |"
    yield "|---|--:|--:|---|"
    with TemporaryDirectory() as directory:
        for name in record_names():
            record = load_record(name)
            with redirect_stdout(io.StringIO()):
                path = write(name, Path(directory))
            wrong = list(differences(record, open_gguf(path)))
            counts = f"{len(record['metadata'])} | {len(record['tensors'])}"
            yield f"| {name} | {counts} | {'no: ' + wrong[0] if wrong else 'yes'} |"


if __name__ == "__main__":
    print("\n".join(table()))
