"""``problems`` is silent about sound models and names what is wrong with others."""

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf_hybrid.tools.check import SCALES, problems
from gguf_hybrid.tools.gguf_writer import OutputFile, write_files
from gguf_hybrid.tools.inspect import main as inspect
from gguf_hybrid.tools.shards import copied

from gguf_hybrid.weights.ggml import BLOCK_SIZES
from gguf_hybrid.weights.metadata import Field, ValueType
from gguf_hybrid.weights.quants import dequantize
from gguf_hybrid.weights.reader import open_gguf

MODELS = Path(__file__).parents[1] / "data" / "models"
MODEL = MODELS / "qwen35-tiny-Q4_K_M.gguf"


@pytest.mark.parametrize("path", sorted(MODELS.glob("*tiny-*.gguf")), ids=lambda p: p.stem)
def test_sound_models_have_no_problems(path):
    assert list(problems(open_gguf(path))) == []


def patched(tmp_path, name, position, data):
    path = tmp_path / "model.gguf"
    shutil.copy(MODEL, path)
    tensor = open_gguf(path).tensors[name]
    with path.open("r+b") as file:
        file.seek(tensor.offset + position)
        file.write(data)
    return open_gguf(path)


INFINITE = struct.pack("<H", 0x7C00)


@pytest.mark.parametrize(
    ("name", "position", "data", "problem"),
    [
        ("blk.0.ffn_gate.weight", 0, INFINITE, "1 Q4_K blocks hold a value not finite"),
        ("token_embd.weight", 210 + 208, INFINITE, "1 Q6_K blocks hold a value not finite"),
        ("output_norm.weight", 4, struct.pack("<f", float("nan")), "1 F32 blocks hold"),
        ("blk.0.ssm_a", 0, struct.pack("<f", 0.5), "decays have to be negative"),
    ],
)
def test_bad_values_name_the_tensor(tmp_path, name, position, data, problem):
    (line,) = problems(patched(tmp_path, name, position, data))
    assert line.startswith(f"tensor {name}: ") and problem in line


@pytest.mark.parametrize("ggml_type", SCALES, ids=lambda t: t.name)
def test_scales_lie_where_the_decoder_reads_them(ggml_type):
    nbytes = BLOCK_SIZES[ggml_type].nbytes
    for start in SCALES[ggml_type]:
        block = bytearray(b"\x11" * nbytes)
        block[start : start + 2] = INFINITE
        values = dequantize(
            np.frombuffer(bytes(block), np.uint8), ggml_type, (1, BLOCK_SIZES[ggml_type].length)
        )
        assert not np.isfinite(values).all()


def with_fields(tmp_path, changes, without=()):
    model = open_gguf(MODEL)
    fields = {k: f for k, f in {**model.fields, **changes}.items() if k not in without}
    path = tmp_path / "model.gguf"
    tensors = [copied(tensor) for tensor in model.tensors.values()]
    write_files([OutputFile(path, fields, tensors)], force=False)
    return open_gguf(path)


def text(value):
    return Field(value, ValueType.STRING)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"qwen35.embedding_length": Field(512, ValueType.U32)}, "has the shape"),
        ({"tokenizer.ggml.pre": text("llama3")}, "tokenizer.ggml.pre"),
        ({"tokenizer.chat_template": text("{{ raise_exception('no') }}")}, "no"),
        ({"tokenizer.chat_template": text("hi")}, "drops the user's message"),
        ({"tokenizer.ggml.eos_token_id": Field(9999, ValueType.U32)}, "eos_token_id"),
    ],
)
def test_bad_metadata_is_found(tmp_path, changes, problem):
    assert any(problem in line for line in problems(with_fields(tmp_path, changes)))


def test_a_missing_template_is_found(tmp_path):
    model = with_fields(tmp_path, {}, without=["tokenizer.chat_template"])
    (line,) = problems(model)
    assert "tokenizer.chat_template is missing" in line


def test_inspect_shows_the_problems(tmp_path, capsys):
    assert inspect(["--check", str(MODEL)]) == 0
    assert capsys.readouterr().out == "no problems\n"
    model = patched(tmp_path, "blk.0.ffn_gate.weight", 0, INFINITE)
    assert inspect(["--check", str(model.path)]) == 1
    assert "blk.0.ffn_gate.weight" in capsys.readouterr().out
