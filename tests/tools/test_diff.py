"""``differences`` lists every difference of two files and nothing else."""

from pathlib import Path

import numpy as np
import pytest
from gguf_hybrid.tools.diff import differences
from gguf_hybrid.tools.gguf_writer import OutputFile, write_files
from gguf_hybrid.tools.inspect import main as inspect
from gguf_hybrid.tools.shards import copied

from gguf_hybrid.weights.metadata import Field, ValueType
from gguf_hybrid.weights.reader import open_gguf

MODELS = Path(__file__).parents[1] / "data" / "models"


@pytest.fixture(scope="module")
def model():
    return open_gguf(MODELS / "qwen35-tiny-Q4_K_M.gguf")


def changed(model, path, fields=(), without=()):
    kept = [copied(t) for name, t in model.tensors.items() if name not in without]
    write_files([OutputFile(path, {**model.fields, **dict(fields)}, kept)], force=False)
    return open_gguf(path)


def test_a_file_does_not_differ_from_itself(model):
    assert list(differences(model, model)) == []


def test_metadata_differences_name_key_type_and_place(model, tmp_path):
    tokens = np.array(list(model.metadata["tokenizer.ggml.tokens"]), object)
    tokens[7] = "other"
    other = changed(
        model,
        tmp_path / "b.gguf",
        {
            "general.name": Field("Other", ValueType.STRING),
            "general.file_type": Field(15, ValueType.U64),
            "tokenizer.ggml.tokens": Field(tokens, ValueType.ARRAY, ValueType.STRING),
            "general.author": Field("someone", ValueType.STRING),
        },
    )
    lines = list(differences(model, other))
    assert "key general.name: 'Qwen35 Tiny' in A, 'Other' in B" in lines
    assert "key general.file_type: U32 in A, U64 in B" in lines
    assert "key general.author: only in B: 'someone'" in lines
    assert any("tokens: 1 elements differ, first [7]" in line for line in lines)
    assert len(lines) == 4


def test_tensor_differences_tell_the_error(model, tmp_path):
    other = open_gguf(MODELS / "qwen35-tiny-Q8_0.gguf")
    lines = [line for line in differences(model, other) if line.startswith("tensor blk.0.ffn_up")]
    assert lines[0].startswith("tensor blk.0.ffn_up.weight: Q4_K in A, Q8_0 in B, relative RMS")
    assert 0.01 < float(lines[0].rpartition(" ")[2]) < 0.2


def test_missing_tensors_and_changed_bytes(model, tmp_path):
    path = tmp_path / "b.gguf"
    changed(model, path, without=["blk.0.ssm_a"])
    tensor = open_gguf(path).tensors["output_norm.weight"]
    with path.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(bytes(4))
    lines = list(differences(model, open_gguf(path)))
    assert "tensor blk.0.ssm_a: only in A" in lines
    assert any(line.startswith("tensor output_norm.weight: ") for line in lines)
    assert len(lines) == 2


def test_inspect_shows_the_differences(tmp_path, capsys):
    a, b = str(MODELS / "qwen35-tiny-Q4_K_M.gguf"), str(MODELS / "qwen35-tiny-Q4_0.gguf")
    assert inspect(["--diff", a, b]) == 1
    assert "key general.file_type: 15 in A, 2 in B" in capsys.readouterr().out
    assert inspect(["--diff", a, a]) == 0
    assert capsys.readouterr().out == "no differences\n"
