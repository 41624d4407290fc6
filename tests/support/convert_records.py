"""Records of what llama.cpp's converter and quantiser wrote, and the comparison with our files.

A record (tests/data/convert/records) holds each metadata key with its types and value (long values
as the SHA-256 of their compact JSON) and each tensor with shape (ggml order), type and SHA-256.
Run as a module with a directory of files named CHECKPOINT.STEP-TYPE.gguf to print a Markdown table.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gguf_hybrid.weights.metadata import Field, ValueType
from gguf_hybrid.weights.reader import GGUFFile, open_gguf

RECORDS = Path(__file__).parents[1] / "data" / "convert" / "records"
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


def table(directory: Path) -> Iterator[str]:
    """Markdown rows: one a record, with the number of equal keys and tensors."""
    yield "| record | keys | tensors | equal |"
    yield "|---|--:|--:|---|"
    for name in record_names():
        record = load_record(name)
        path = directory / f"{name}.gguf"
        wrong = list(differences(record, open_gguf(path))) if path.exists() else ["not written"]
        verdict = "yes" if not wrong else f"no: {wrong[0]}"
        yield f"| {name} | {len(record['metadata'])} | {len(record['tensors'])} | {verdict} |"


if __name__ == "__main__":
    print("\n".join(table(Path(sys.argv[1]))))
