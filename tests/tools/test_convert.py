"""``convert`` writes what llama.cpp's converter writes, from every layout, or nothing at all."""

import errno
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from gguf_hybrid.tools import gguf_writer
from gguf_hybrid.tools.convert import main
from gguf_hybrid.tools.convert_tensors import Heads, tile_heads
from gguf_hybrid.tools.diff import differences as file_differences
from gguf_hybrid.tools.merge import main as merge_main
from support import checkpoints
from support.checkpoints import DENSE, MOE
from support.convert_records import differences, load_record, record_names

from gguf_hybrid.weights.quants import dequantize
from gguf_hybrid.weights.reader import open_gguf

MODELS = DENSE.parents[1] / "models"


def run(source, out, *flags):
    assert main([str(source), "--outfile", str(out), *flags]) == 0
    return open_gguf(out)


def same_content(a, b):
    assert list(file_differences(a, b)) == []


@pytest.fixture(scope="module")
def dense():
    return open_gguf(MODELS / "qwen35-tiny-BF16.gguf")


@pytest.fixture(scope="module")
def moe():
    return open_gguf(MODELS / "qwen35moe-tiny-BF16.gguf")


@pytest.mark.parametrize("name", [name for name in record_names() if ".convert-" in name])
def test_equals_llama_cpp(name, tmp_path):
    model, _, outtype = name.partition(".convert-")
    written = run(checkpoints.CHECKPOINTS / model, tmp_path / "out.gguf", "--outtype", outtype)
    assert list(differences(load_record(name), written)) == []


@pytest.mark.parametrize("model", ["qwen35-tiny", "qwen35moe-tiny"])
def test_auto_keeps_the_16_bit_type_of_the_weights_to_the_byte(model, tmp_path):
    run(checkpoints.CHECKPOINTS / model, tmp_path / "out.gguf")
    golden = MODELS / f"{model}-BF16.gguf"
    assert (tmp_path / "out.gguf").read_bytes() == golden.read_bytes()


def test_nested_layout_gives_the_same_file(tmp_path, dense):
    nested = {
        name.replace("model.", "model.language_model.", 1): array
        for name, array in checkpoints.weights(DENSE).items()
    }
    checkpoints.single_file(DENSE, tmp_path / "qwen35-tiny", nested)
    same_content(run(tmp_path / "qwen35-tiny", tmp_path / "out.gguf"), dense)


def test_per_expert_weights_give_the_same_file(tmp_path, moe):
    split = checkpoints.per_expert(checkpoints.weights(MOE))
    checkpoints.single_file(MOE, tmp_path / "qwen35moe-tiny", split)
    same_content(run(tmp_path / "qwen35moe-tiny", tmp_path / "out.gguf"), moe)


def test_vision_tower_is_skipped_with_a_note(tmp_path, dense, capsys):
    tensors = checkpoints.weights(DENSE)
    tensors["model.visual.patch_embed.proj.weight"] = np.ones((4, 4), np.float32)
    checkpoints.single_file(DENSE, tmp_path / "qwen35-tiny", tensors)
    same_content(run(tmp_path / "qwen35-tiny", tmp_path / "out.gguf"), dense)
    assert "skipped 1 tensors" in capsys.readouterr().out


@pytest.mark.parametrize("block", [128, 96])
def test_fp8_weights_are_multiplied_with_their_block_scales(tmp_path, block):
    tensors = checkpoints.to_fp8(checkpoints.weights(DENSE), block)
    path = checkpoints.single_file(DENSE, tmp_path / "fp8", tensors)
    fp8 = {"quant_method": "fp8", "weight_block_size": [block, block]}
    checkpoints.edit_json(path / "config.json", lambda c: c.update(quantization_config=fp8))
    written = run(path, tmp_path / "out.gguf", "--outtype", "f32")
    tensor = written.tensors["blk.3.ffn_down.weight"]
    name = "model.layers.3.mlp.down_proj.weight"
    scale = tensors[f"{name}_scale_inv"].astype(np.float32)
    rows, columns = (np.arange(n) // block for n in tensor.shape)
    want = tensors[name].astype(np.float32) * scale[rows][:, columns]
    assert np.array_equal(dequantize(tensor.data, tensor.type, tensor.shape), want)


def test_fp8_experts_take_the_scale_of_their_own_tile(tmp_path):
    tensors = checkpoints.to_fp8(checkpoints.per_expert(checkpoints.weights(MOE)), 128)
    path = checkpoints.single_file(MOE, tmp_path / "fp8", tensors)
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    checkpoints.edit_json(path / "config.json", lambda c: c.update(quantization_config=fp8))
    tensor = run(path, tmp_path / "out.gguf", "--outtype", "f32").tensors[
        "blk.1.ffn_up_exps.weight"
    ]
    written = dequantize(tensor.data, tensor.type, tensor.shape)
    original = checkpoints.weights(MOE)["model.language_model.layers.1.mlp.experts.gate_up_proj"]
    up = original.astype(np.float32)[:, 256:]
    assert np.abs(written - up).max() <= np.abs(up).max() / 16


def test_float16_sources_round_in_float16(tmp_path):
    halves = {n: a.astype(np.float16) for n, a in checkpoints.weights(DENSE).items()}
    path = checkpoints.single_file(DENSE, tmp_path / "half", halves)
    written = run(path, tmp_path / "out.gguf")
    assert written.metadata["general.file_type"] == 1
    norm = written.tensors["blk.0.attn_norm.weight"]
    want = (halves["model.layers.0.input_layernorm.weight"] + np.float16(1)).astype(np.float32)
    assert np.array_equal(norm.data.view(np.float32), want)


def test_without_mtp_the_trunk_is_unchanged(tmp_path, dense):
    written = run(DENSE, tmp_path / "out.gguf", "--no-mtp")
    assert written.metadata["qwen35.block_count"] == 8
    assert "qwen35.nextn_predict_layers" not in written.metadata
    trunk = {n: t for n, t in dense.tensors.items() if not n.startswith("blk.8.")}
    assert list(written.tensors) == list(trunk)
    for name, tensor in trunk.items():
        assert np.array_equal(written.tensors[name].data, tensor.data), name


def test_mtp_only_holds_the_block_and_what_it_shares(tmp_path, dense):
    written = run(DENSE, tmp_path / "out.gguf", "--mtp-only")
    assert written.metadata["qwen35.block_count"] == 9
    shared = {"token_embd.weight", "output_norm.weight"}
    assert set(written.tensors) == shared | {n for n in dense.tensors if n.startswith("blk.8.")}


def test_weights_without_mtp_do_not_claim_one(tmp_path):
    trunk = {n: a for n, a in checkpoints.weights(DENSE).items() if not n.startswith("mtp.")}
    path = checkpoints.single_file(DENSE, tmp_path / "trunk", trunk)
    written = run(path, tmp_path / "out.gguf")
    assert written.metadata["qwen35.block_count"] == 8
    assert main([str(path), "--outfile", str(tmp_path / "mtp.gguf"), "--mtp-only"]) == 1


def test_shards_merge_to_the_single_file(tmp_path):
    assert main([str(DENSE), "--outfile", str(tmp_path / "m.gguf"), "--split-max-size", "5M"]) == 0
    shards = sorted(tmp_path.glob("m-*.gguf"))
    assert len(shards) > 3 and all(s.stat().st_size < 6e6 for s in shards)
    assert merge_main([str(shards[1]), str(tmp_path / "one.gguf")]) == 0
    golden = MODELS / "qwen35-tiny-BF16.gguf"
    assert (tmp_path / "one.gguf").read_bytes() == golden.read_bytes()


def test_dry_run_says_what_and_writes_nothing(tmp_path, capsys):
    assert main([str(DENSE), "--outfile", str(tmp_path), "--dry-run", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "qwen35-tiny-8.9M-BF16.gguf: 123 tensors" in out.replace("Qwen35-Tiny", "qwen35-tiny")
    assert "blk.8.nextn.eh_proj.weight" in out
    assert list(tmp_path.iterdir()) == []


def test_outfile_template_names_the_type(tmp_path):
    assert main([str(DENSE), "--outfile", str(tmp_path / "m-{ftype}.gguf")]) == 0
    assert (tmp_path / "m-bf16.gguf").exists()


def test_needs_a_fraction_of_the_model_in_memory(tmp_path):
    tracemalloc.start()
    run(MOE, tmp_path / "out.gguf")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16e6 < (tmp_path / "out.gguf").stat().st_size / 2


def test_value_heads_move_from_grouped_to_tiled_order():
    heads = Heads(n_k=4, n_v=12, dim_k=2, dim_v=3)
    rows = np.arange(36).reshape(36, 1)
    tiled = tile_heads(rows, heads, dim=3).reshape(12, 3)
    for t in range(12):
        assert tiled[t, 0] // 3 == t % 4 * 3 + t // 4


def unknown_dtype(path):
    raw = b'{"x": {"dtype": "I4", "shape": [1], "data_offsets": [0, 1]}}'
    (path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + b"0")
    (path / "model.safetensors.index.json").unlink()


def truncated(path):
    shard = path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1000])


def edited(name, change):
    return lambda path: checkpoints.edit_json(path / name, change)


def other_regex(tokenizer):
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a-z]+"


DEFECTS = {
    "shard missing": (
        lambda path: (path / "model-00002-of-00002.safetensors").unlink(),
        "model-00002-of-00002.safetensors is missing",
    ),
    "shard truncated": (truncated, "truncated: tensor"),
    "no config": (lambda path: (path / "config.json").unlink(), "config.json: no such file"),
    "config no JSON": (lambda path: (path / "config.json").write_text("{"), "not JSON"),
    "other architecture": (
        edited("config.json", lambda c: c.update(architectures=["LlamaForCausalLM"])),
        "architecture LlamaForCausalLM is not supported",
    ),
    "other width": (
        edited("config.json", lambda c: c.update(hidden_size=512)),
        "tensor token_embd.weight should have the shape",
    ),
    "fewer layers": (
        edited("config.json", lambda c: c.update(num_hidden_layers=7)),
        "num_hidden_layers is 7",
    ),
    "more layers": (
        edited("config.json", lambda c: c.update(num_hidden_layers=9)),
        "layer_types has 8 entries, num_hidden_layers is 9",
    ),
    "yarn without factor": (
        edited("config.json", lambda c: c["rope_parameters"].update(rope_type="yarn")),
        "factor is missing",
    ),
    "unknown rope": (
        edited("config.json", lambda c: c["rope_parameters"].update(rope_type="longrope")),
        "rope_type longrope is not supported",
    ),
    "key missing": (
        edited("config.json", lambda c: c.pop("linear_num_value_heads")),
        "linear_num_value_heads is missing",
    ),
    "not a number": (
        edited("config.json", lambda c: c.update(num_attention_heads="four")),
        "num_attention_heads is 'four'",
    ),
    "other quantisation": (
        edited("config.json", lambda c: c.update(quantization_config={"quant_method": "gptq"})),
        "quant_method gptq is not supported",
    ),
    "other regex": (edited("tokenizer.json", other_regex), "the regex '[a-z]+'"),
    "no tokenizer": (lambda path: (path / "tokenizer.json").unlink(), "tokenizer.json: no such"),
    "unknown dtype": (unknown_dtype, "tensor x has the dtype I4"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_bad_checkpoint_is_one_line_and_no_file(defect, tmp_path, capsys):
    path = checkpoints.full_copy(DENSE, tmp_path / "qwen35-tiny")
    damage, message = DEFECTS[defect]
    damage(path)
    out = tmp_path / "out"
    out.mkdir()
    assert main([str(path), "--outfile", str(out / "m.gguf")]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert list(out.iterdir()) == []


def test_an_unknown_tensor_is_named(tmp_path, capsys):
    tensors = checkpoints.weights(DENSE)
    tensors["model.layers.0.adapter.weight"] = np.ones((2, 2), ml_dtypes.bfloat16)
    path = checkpoints.single_file(DENSE, tmp_path / "extra", tensors)
    assert main([str(path), "--outfile", str(tmp_path / "m.gguf")]) == 1
    assert "tensor model.layers.0.adapter.weight" in capsys.readouterr().err


def test_a_lost_expert_is_named(tmp_path, capsys):
    tensors = checkpoints.per_expert(checkpoints.weights(MOE))
    del tensors["model.language_model.layers.2.mlp.experts.5.up_proj.weight"]
    path = checkpoints.single_file(MOE, tmp_path / "lost", tensors)
    assert main([str(path), "--outfile", str(tmp_path / "m.gguf")]) == 1
    assert "layer 2" in capsys.readouterr().err


def test_existing_output_needs_force(tmp_path, capsys):
    out = tmp_path / "m.gguf"
    out.write_text("mine")
    assert main([str(DENSE), "--outfile", str(out)]) == 1
    assert "--force" in capsys.readouterr().err and out.read_text() == "mine"
    run(DENSE, out, "--force")


def test_a_full_disk_leaves_nothing_behind(tmp_path, capsys, monkeypatch):
    out = tmp_path / "m.gguf"
    out.write_text("old")
    chunks = iter(range(5))

    def full(*_):
        if next(chunks, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf_writer.tqdm, "update", full)
    assert main([str(DENSE), "--outfile", str(out), "--force"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert out.read_text() == "old" and list(tmp_path.iterdir()) == [out]


def test_neither_directory_nor_repository(capsys):
    assert main(["/no/such/checkpoint"]) == 1
    assert "/no/such/checkpoint: not a directory" in capsys.readouterr().err
