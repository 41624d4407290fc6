"""The expected tensors add up to the published models, and every deviation of a file is named."""

import dataclasses
import mmap
from math import prod
from pathlib import Path

import numpy as np
import pytest

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import GGUFError
from gguf_hybrid.weights.ggml import GGMLType, row_nbytes
from gguf_hybrid.weights.layout import check_tensors, expected_mtp_tensors, expected_tensors
from gguf_hybrid.weights.reader import TensorInfo, open_gguf

DATA = Path(__file__).parents[1] / "data/models"
DEMO = Path(__file__).parents[2] / "gguf_hybrid/demo/qwen35moe-tiny-Q4_K_M.gguf"

# Parameters of the text trunk and of the MTP block (with its optional norm) of released models.
PARAMETERS = {
    "0.8B": (752_393_024, 20_452_864),
    "2B": (1_881_825_088, 60_828_160),
    "4B": (4_205_751_296, 120_599_552),
    "9B": (8_953_803_264, 243_290_624),
    "27B": (26_895_998_464, 424_699_392),
    "35B-A3B": (34_660_610_688, 844_640_768),
    "122B-A10B": (122_111_526_912, 2_523_679_232),
    "397B-A17B": (396_346_350_336, 6_595_568_128),
}


def total(shapes):
    return sum(prod(shape) for shape in shapes.values())


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_expected_tensors_add_up_to_the_published_parameters(released, name, parameters):
    config = ModelConfig.from_metadata(*released(name))
    shared_head_norm = config.n_embd
    mtp = total(expected_mtp_tensors(config)) + shared_head_norm
    assert (total(expected_tensors(config)), mtp) == parameters


@pytest.mark.parametrize("path", [*sorted(DATA.glob("*.gguf")), DEMO], ids=lambda p: p.stem)
def test_model_files_pass(path):
    gguf = open_gguf(path)
    config = ModelConfig.from_metadata(gguf.metadata, gguf.tensors)
    checked = check_tensors(config, gguf.tensors)
    assert checked.trunk.keys() == expected_tensors(config).keys()
    assert all(name.startswith("blk.8.") for name in checked.mtp)
    assert len(checked.trunk) + len(checked.mtp) == len(gguf.tensors)


class Model:
    """A configuration and a file that fits it, to be bent by a test."""

    def __init__(self, released, name):
        self.config = ModelConfig.from_metadata(*released(name))
        self.tensors = {}
        for tensor, shape in (
            expected_tensors(self.config) | expected_mtp_tensors(self.config)
        ).items():
            self.add(tensor, shape)

    def add(self, name, shape, ggml_type=GGMLType.F32):
        nothing = mmap.mmap(-1, 1)
        self.tensors[name] = TensorInfo(name, ggml_type, shape, Path("m"), 0, 0, nothing)

    def change(self, name, **changes):
        self.tensors[name] = dataclasses.replace(self.tensors[name], **changes)

    def check(self):
        return check_tensors(self.config, self.tensors, "m.gguf")


@pytest.fixture
def moe(released):
    return Model(released, "35B-A3B")


@pytest.fixture
def dense(released):
    return Model(released, "4B")


def refused(model, *words):
    with pytest.raises(GGUFError) as caught:
        model.check()
    message = str(caught.value)
    assert message.startswith("m.gguf: ") and "\n" not in message
    for word in words:
        assert word in message


def test_fused_attention_is_accepted(moe):
    for part in "qkv":
        del moe.tensors[f"blk.3.attn_{part}.weight"]
    moe.add("blk.3.attn_qkv.weight", (2 * 16 * 256 + 2 * 2 * 256, 2048))
    assert "blk.3.attn_qkv.weight" in moe.check().trunk


def test_fused_and_split_attention_together_are_refused(moe):
    moe.add("blk.3.attn_qkv.weight", (9216, 2048))
    refused(moe, "unexpected tensor blk.3.attn_k.weight", "blk.3.attn_q.weight")


def test_a_delta_net_block_needs_its_own_qkv(moe):
    del moe.tensors["blk.0.attn_qkv.weight"]
    refused(moe, "missing tensor blk.0.attn_qkv.weight")


def test_fused_experts_are_accepted(moe):
    del moe.tensors["blk.7.ffn_gate_exps.weight"], moe.tensors["blk.7.ffn_up_exps.weight"]
    moe.add("blk.7.ffn_gate_up_exps.weight", (256, 1024, 2048))
    assert "blk.7.ffn_gate_up_exps.weight" in moe.check().trunk
    moe.add("blk.7.ffn_gate_up_exps.weight", (256, 2048, 1024))
    refused(moe, "blk.7.ffn_gate_up_exps.weight", "(256, 1024, 2048)")


def test_a_vector_may_be_a_matrix_of_one_row(moe):
    moe.change("blk.0.ffn_gate_inp_shexp.weight", shape=(1, 2048))
    moe.check()
    moe.change("blk.0.ffn_gate_inp_shexp.weight", shape=(2048, 1))
    refused(moe, "blk.0.ffn_gate_inp_shexp.weight")


def test_scales_beside_a_weight_are_accepted(moe):
    moe.add("blk.0.ssm_out.scale", (1,))
    moe.add("blk.0.ffn_up_exps.scale", (256,))
    moe.add("blk.0.ffn_up_exps.input_scale", (256,))
    assert "blk.0.ffn_up_exps.scale" in moe.check().trunk
    moe.add("blk.0.ffn_up_exps.scale", (1,))
    refused(moe, "blk.0.ffn_up_exps.scale", "(256,)")


def test_a_scale_beside_nothing_is_refused(moe):
    moe.add("blk.0.other.scale", (1,))
    refused(moe, "unexpected tensor blk.0.other.scale")


def test_mtp_blocks_are_set_aside(moe):
    for name in ("shared_head_norm", "embed_tokens", "shared_head_head"):
        shape = (2048,) if name == "shared_head_norm" else (248320, 2048)
        moe.add(f"blk.40.nextn.{name}.weight", shape)
    checked = moe.check()
    assert checked.trunk.keys() == expected_tensors(moe.config).keys()
    assert len(checked.mtp) == len(expected_mtp_tensors(moe.config)) + 3


def test_an_incomplete_mtp_block_is_refused(moe):
    del moe.tensors["blk.40.nextn.eh_proj.weight"]
    refused(moe, "missing tensor blk.40.nextn.eh_proj.weight")


def test_every_missing_tensor_is_named(dense):
    for name in expected_tensors(dense.config):
        if name != "blk.0.attn_norm.weight":
            tensor = dense.tensors.pop(name)
            refused(dense, f"missing tensor {name}")
            dense.tensors[name] = tensor


def test_many_missing_tensors_are_one_line(dense):
    for i in range(32):
        del dense.tensors[f"blk.{i}.ffn_up.weight"]
    refused(dense, "blk.0.ffn_up.weight", "and 29 more")


@pytest.mark.parametrize("name", ["blk.0.ffn_norm.weight", "blk.99.attn_norm.weight", "v.x", "x"])
def test_an_unexpected_tensor_is_named(dense, name):
    dense.add(name, (2560,))
    refused(dense, f"unexpected tensor {name}")


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.ssm_conv1d.weight", "blk.0.ssm_a"])
def test_a_wrong_shape_is_named(dense, name):
    shape = dense.tensors[name].shape
    dense.change(name, shape=(*shape[:-1], shape[-1] + 1))
    refused(dense, f"tensor {name} has the shape", str(shape))


def test_a_transposed_matrix_is_refused(dense):
    dense.change("blk.0.ffn_up.weight", shape=(2560, 9216))
    refused(dense, "blk.0.ffn_up.weight", "(9216, 2560)")


def test_types_that_are_no_weights_are_refused(dense):
    dense.change("blk.0.ffn_up.weight", type=GGMLType.I32)
    refused(dense, "blk.0.ffn_up.weight", "I32")


def test_vectors_are_floats(dense):
    dense.change("blk.0.attn_norm.weight", type=GGMLType.BF16)
    dense.check()
    dense.change("blk.0.attn_norm.weight", type=GGMLType.Q8_0)
    refused(dense, "blk.0.attn_norm.weight", "Q8_0")


def test_the_interleaved_qwen3next_layout_is_refused(moe):
    moe.add("blk.0.ssm_in.weight", (12288, 2048))
    refused(moe, "blk.0.ssm_in.weight", "qwen3next")


@pytest.mark.parametrize("ggml_type", [GGMLType.F32, GGMLType.Q4_K], ids=lambda t: t.name)
def test_qwen3next_betas_and_alphas_are_cut_apart(ggml_type, released, builder, gguf_file):
    metadata, names = released("35B-A3B")
    metadata = {k.replace("qwen35moe", "qwen3next"): v for k, v in metadata.items()}
    metadata["general.architecture"] = "qwen3next"
    model = Model(released, "35B-A3B")
    model.config = ModelConfig.from_metadata(metadata, names)
    nbytes = row_nbytes(ggml_type, 2048)
    rows = np.random.default_rng(0).integers(0, 256, (16, 2, 2, nbytes), dtype=np.uint8)
    made = builder().tensor("blk.0.ssm_ba.weight", (2048, 64), rows.tobytes(), ggml_type.value)
    model.tensors |= open_gguf(gguf_file(made)).tensors
    del model.tensors["blk.0.ssm_beta.weight"], model.tensors["blk.0.ssm_alpha.weight"]
    trunk = model.check().trunk
    assert "blk.0.ssm_ba.weight" not in trunk
    for part, name in enumerate(("ssm_beta", "ssm_alpha")):
        tensor = trunk[f"blk.0.{name}.weight"]
        tensor.drop_pages()
        assert tensor.shape == (32, 2048) and tensor.type is ggml_type
        assert tensor.data.tobytes() == rows[:, part].tobytes()
        assert not tensor.data.flags.writeable


def test_ssm_ba_belongs_to_qwen3next_alone(moe):
    moe.add("blk.0.ssm_ba.weight", (64, 2048))
    refused(moe, "unexpected tensor blk.0.ssm_ba.weight")
