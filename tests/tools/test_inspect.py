"""``inspect`` tells the truth about a file, in text and in JSON."""

import json
from pathlib import Path

import pytest
from gguf_hybrid.tools.inspect import fitting_contexts, main

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.weights.reader import open_gguf

DEMO = Path(__file__).parents[2] / "gguf_hybrid/demo/qwen35moe-tiny-Q4_K_M.gguf"
DENSE = Path(__file__).parents[1] / "data/models/qwen35-tiny-Q4_0.gguf"


@pytest.fixture(scope="module")
def gguf():
    return open_gguf(DEMO)


@pytest.fixture(scope="module")
def config(gguf):
    return ModelConfig.from_metadata(gguf.metadata, gguf.tensors)


def described(capsys, *args):
    assert main([str(DEMO), "--json", *args]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_accounts_for_every_byte_and_key(capsys, gguf):
    shown = described(capsys)
    assert shown["files"] == [str(DEMO)] and shown["version"] == 3
    assert list(shown["metadata"]) == list(gguf.metadata)
    assert [t["name"] for t in shown["tensors"]] == list(gguf.tensors)
    total = sum(t["nbytes"] for t in shown["tensors"])
    assert shown["nbytes"] == total == sum(t["nbytes"] for t in shown["types"])
    assert sum(t["tensors"] for t in shown["types"]) == len(gguf.tensors)


def test_json_keeps_values_and_shortens_arrays(capsys, gguf):
    metadata = described(capsys)["metadata"]
    assert metadata["general.architecture"] == {"type": "string", "value": "qwen35moe"}
    tokens = metadata["tokenizer.ggml.tokens"]
    assert tokens["type"] == "array[string]" and tokens["length"] == 4096
    assert tokens["first"] == gguf.metadata["tokenizer.ggml.tokens"][: len(tokens["first"])]


def test_json_has_what_serving_takes(capsys, config):
    model = described(capsys)["model"]
    assert model["config"]["n_embd"] == config.n_embd
    assert model["state_nbytes_per_slot"] == config.state_nbytes
    assert model["kv_nbytes_per_token"] == config.kv_nbytes_per_token()
    assert model["weights_nbytes"] < model["mlx_weights_nbytes"]
    assert "fits" not in model


def test_text_shows_the_sizes(capsys):
    assert main([str(DEMO)]) == 0
    text = capsys.readouterr().out
    assert "420.0 KiB per slot" in text and "1.0 KiB per token" in text
    assert "8 layers (6 Gated DeltaNet, 2 attention)" in text
    for name in ("general.architecture", "blk.0.ssm_out.weight", "Q4_K"):
        assert name in text


@pytest.mark.parametrize("memory", [12 << 20, 100 << 20, 1 << 40])
def test_what_fits_fits_and_one_block_more_does_not(config, memory):
    weights = 11 << 20
    for fit in fitting_contexts(config, weights, memory):
        slots, n_ctx = fit["slots"], fit["n_ctx"]

        def needs(tokens, slots=slots):
            kv = tokens * config.kv_nbytes_per_token()
            return weights + slots * (config.state_nbytes + kv)

        assert n_ctx % 256 == 0
        assert n_ctx == 0 or needs(n_ctx) <= memory
        assert n_ctx == config.n_ctx_train or needs(n_ctx + 256) > memory


def test_memory_is_shown_per_number_of_slots(capsys):
    fits = described(capsys, "--memory", "0.0625")["model"]["fits"]
    assert [fit["slots"] for fit in fits] == [1, 2, 4, 8, 16, 32]
    assert main([str(DEMO), "--memory", "0.001"]) == 0
    assert "does not fit" in capsys.readouterr().out


@pytest.mark.parametrize("memory", ["0", "-1", "nan", "inf", "x"])
def test_a_wrong_memory_is_named(capsys, memory):
    with pytest.raises(SystemExit):
        main([str(DEMO), f"--memory={memory}"])
    assert "--memory" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"", b"not a model at all"])
def test_an_unreadable_file_is_one_line_and_exit_code_1(capsys, tmp_path, content):
    path = tmp_path / "x.gguf"
    if content is not None:
        path.write_bytes(content)
    assert main([str(path)]) == 1
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and str(path) in output.err


def test_a_file_that_cannot_be_served_is_shown_with_the_reason(capsys, tmp_path):
    path = tmp_path / "other.gguf"
    content = DENSE.read_bytes()
    path.write_bytes(content.replace(b"\x06\0\0\0\0\0\0\0qwen35", b"\x06\0\0\0\0\0\0\0gemma3", 1))
    assert main([str(path)]) == 0
    text = capsys.readouterr().out
    assert "not served" in text and "'gemma3' is not supported" in text
    assert "blk.0.ssm_out.weight" in text
