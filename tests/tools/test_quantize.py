"""``quantize`` writes what llama-quantize writes: types, bytes, provenance."""

import hashlib
import json
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gguf_hybrid.tools.convert import main as convert_main
from gguf_hybrid.tools.quantize import main, quantize
from gguf_hybrid.tools.quantize_imatrix import load_imatrix
from gguf_hybrid.tools.quantize_types import ALIASES, MIXES, Overrides, target_types
from support import quantize_inputs
from support.checkpoints import CHECKPOINTS
from support.convert_records import differences, load_record, record_names

from gguf_hybrid.cpu import library, quantizer
from gguf_hybrid.cpu.quantizer import NotFiniteError, quantize_rows
from gguf_hybrid.errors import BackendError, GGUFError
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.quants import dequantize
from gguf_hybrid.weights.reader import open_gguf

MODELS = CHECKPOINTS.parent / "models"
RECORDS = json.loads((CHECKPOINTS / "quantize_records.json").read_text())
BLOCK_TYPES = list(RECORDS["blocks"])

pytestmark = pytest.mark.skipif(library.find() is None, reason="the CPU library is not built")


def bf16(model):
    return MODELS / f"{model}-BF16.gguf"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def label(record):
    return "-".join(str(v) for k, v in record.items() if not k.startswith("sha256"))


@pytest.mark.parametrize("name", [name for name in record_names() if ".quantize-" in name])
def test_equals_llama_quantize(name, tmp_path):
    model, _, target = name.partition(".quantize-")
    out = tmp_path / "out.gguf"
    assert main([str(bf16(model)), str(out), target]) == 0
    assert list(differences(load_record(name), open_gguf(out))) == []


@pytest.mark.parametrize("model", ["qwen35-tiny", "qwen35moe-tiny"])
def test_checkpoint_to_q4_k_m_is_the_golden_file(model, tmp_path):
    full, small = tmp_path / "full.gguf", tmp_path / "small.gguf"
    assert convert_main([str(CHECKPOINTS / model), "--outfile", str(full)]) == 0
    assert main([str(full), str(small), "q4_k_m"]) == 0
    golden = {"qwen35-tiny": MODELS, "qwen35moe-tiny": MODELS.parents[2] / "gguf_hybrid/demo"}
    assert small.read_bytes() == (golden[model] / f"{model}-Q4_K_M.gguf").read_bytes()


@pytest.mark.parametrize("record", RECORDS["flags"], ids=label)
def test_flags_equal_llama_quantize(record, tmp_path):
    out = tmp_path / "out.gguf"
    assert main([*record["flags"], str(bf16(record["model"])), str(out), record["type"]]) == 0
    assert sha256(out.read_bytes()) == record["sha256"]


@pytest.mark.parametrize("record", RECORDS["imatrix"], ids=label)
def test_importance_matrix_equals_llama_quantize(record, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the output notes the matrix's path as it was given
    model = open_gguf(bf16(record["model"]))
    quantize_inputs.write_imatrix(model, tmp_path / "imatrix.gguf")
    quantize_inputs.write_legacy_imatrix(model, tmp_path / "imatrix.dat")
    source = str(bf16(record["model"]))
    assert main(["--imatrix", record["imatrix"], source, "out.gguf", record["type"]]) == 0
    assert sha256((tmp_path / "out.gguf").read_bytes()) == record["sha256"]


@pytest.mark.parametrize("record", RECORDS["types"], ids=label)
def test_types_of_other_shapes_equal_llama_quantize(record, tmp_path):
    path = tmp_path / "changed.gguf"
    quantize_inputs.with_fields(open_gguf(bf16("qwen35moe-tiny")), record["changes"], path)
    mix = MIXES[ALIASES.get(record["type"], record["type"])]
    types = target_types(open_gguf(path), mix, Overrides(), has_imatrix=False)
    names = json.dumps({name: t.name for name, t in types.items()}, sort_keys=True)
    assert sha256(names.encode()) == record["sha256_of_types"]


@pytest.mark.parametrize("kind", ["plain", "importance"])
@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_degenerate_groups_equal_ggml(name, kind):
    rows = quantize_inputs.hard_rows()
    weights = quantize_inputs.importance_row(rows.shape[1], 5) if kind == "importance" else None
    blocks = quantize_rows(rows, GGMLType.F32, GGMLType[name], weights)
    assert sha256(blocks) == RECORDS["blocks"][name][kind]


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_bytes_do_not_depend_on_the_split(name):
    rows, target = quantize_inputs.hard_rows(), GGMLType[name]
    whole = quantize_rows(rows, GGMLType.F32, target)
    parts = [quantize_rows(rows[i : i + 7], GGMLType.F32, target) for i in range(0, len(rows), 7)]
    assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_a_tail_of_blocks_is_quantised_as_in_a_longer_row(name):
    rows, target = quantize_inputs.hard_rows()[8:], GGMLType[name]
    length = 256 if "K" in name or name == "IQ4_XS" else 32
    whole = quantize_rows(rows, GGMLType.F32, target)
    head = quantize_rows(np.ascontiguousarray(rows[:, : 3 * length]), GGMLType.F32, target)
    assert np.array_equal(head, whole[:, : head.shape[1]])


@pytest.mark.parametrize(("source", "bits"), [("F16", np.float16), ("BF16", None)])
def test_source_types_agree_with_their_float32_values(source, bits):
    rows = np.random.default_rng(3).standard_normal((16, 512)).astype(np.float32)
    stored = rows.astype(bits).view(np.uint16) if bits else (rows.view(np.uint32) >> 16)
    stored = np.ascontiguousarray(stored.astype(np.uint16))
    values = dequantize(stored.view(np.uint8).reshape(-1), GGMLType[source], rows.shape)
    for target in (GGMLType.Q4_K, GGMLType.Q8_0):
        want = quantize_rows(values, GGMLType.F32, target)
        assert np.array_equal(quantize_rows(stored, GGMLType[source], target), want)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value):
    rows = np.ones((4, 256), np.float32)
    rows[2, 77] = value
    with pytest.raises(NotFiniteError):
        quantize_rows(rows, GGMLType.F32, GGMLType.Q4_K)


def test_a_tensor_that_is_not_finite_is_named(tmp_path, capsys):
    source = tmp_path / "nan.gguf"
    source.write_bytes(bf16("qwen35-tiny").read_bytes())
    tensor = open_gguf(source).tensors["blk.1.ffn_up.weight"]
    with source.open("r+b") as file:
        file.seek(tensor.offset + 100)
        file.write(struct.pack("<H", 0x7FC0))
    out = tmp_path / "out.gguf"
    assert main([str(source), str(out), "Q4_0"]) == 1
    assert "tensor blk.1.ffn_up.weight holds a value that is not finite" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def test_number_of_threads_does_not_show(tmp_path):
    model = open_gguf(bf16("qwen35-tiny"))
    digests = set()
    for n_threads in (1, 3):
        with ThreadPoolExecutor(n_threads) as pool:
            _, tensors = quantize(model, MIXES["Q4_K_M"], pool)
            digests.add(sha256(b"".join(bytes(c) for t in tensors for c in t.chunks())))
    assert len(digests) == 1


def test_dry_run_writes_nothing(tmp_path, capsys):
    out = tmp_path / "out.gguf"
    assert main([str(bf16("qwen35-tiny")), str(out), "Q4_K_M", "--dry-run", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "5.11 bits per weight" in shown and "BF16  -> Q6_K" in shown
    assert not out.exists()


def test_quantised_input_is_refused(tmp_path, capsys):
    source = MODELS / "qwen35-tiny-Q8_0.gguf"
    assert main([str(source), str(tmp_path / "out.gguf"), "Q4_0"]) == 1
    assert "token_embd.weight is Q8_0: already quantised" in capsys.readouterr().err


def test_existing_output_needs_force(tmp_path, capsys):
    out = tmp_path / "out.gguf"
    out.write_text("mine")
    assert main([str(bf16("qwen35-tiny")), str(out), "Q8_0"]) == 1
    assert "--force" in capsys.readouterr().err and out.read_text() == "mine"


def test_input_is_never_overwritten(tmp_path, capsys):
    source = tmp_path / "model.gguf"
    source.write_bytes(bf16("qwen35-tiny").read_bytes())
    assert main([str(source), str(source), "Q8_0", "--force"]) == 1
    assert "same file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["Q9_9"],
        ["Q4_0", "--tensor-type", "attn_q"],
        ["Q4_0", "--tensor-type", "attn_q=q7"],
        ["Q4_0", "--tensor-type", "(=q8_0"],
        ["Q4_0", "--output-tensor-type", "IQ1_S"],
    ],
)
def test_wrong_types_are_a_usage_error(arguments, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main([str(bf16("qwen35-tiny")), str(tmp_path / "out.gguf"), *arguments])
    assert stop.value.code == 2


def test_without_the_library_it_says_so(tmp_path, capsys, monkeypatch):
    def missing():
        raise BackendError("the CPU library was not built")

    monkeypatch.setattr("gguf_hybrid.tools.quantize.load_quantizer", missing)
    assert main([str(bf16("qwen35-tiny")), str(tmp_path / "out.gguf"), "Q8_0"]) == 1
    assert "the CPU library was not built" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an importance matrix"),
        (struct.pack("<i", 1) + b"\x05", "not an importance matrix"),
        (struct.pack("<ii1sii", 1, 1, b"x", 1, 9), "truncated in entry x"),
        (struct.pack("<ii1siif", 1, 1, b"x", 1, 1, np.inf), "entry x holds a value"),
        (struct.pack("<i", 0), "holds no importance matrix"),
    ],
)
def test_a_damaged_importance_matrix_is_one_line(content, message, tmp_path):
    path = tmp_path / "imatrix.dat"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=message):
        load_imatrix(path)


def test_importance_of_the_wrong_size_names_the_tensor(tmp_path, capsys):
    path = tmp_path / "imatrix.dat"
    name = b"blk.0.ffn_up.weight"
    entry = struct.pack(f"<ii{len(name)}siiff", 1, len(name), name, 1, 2, 1.0, 2.0)
    path.write_bytes(entry)
    source, out = str(bf16("qwen35-tiny")), str(tmp_path / "out.gguf")
    assert main(["--imatrix", str(path), source, out, "Q4_K_M"]) == 1
    assert "blk.0.ffn_up.weight has 2 values, expected 256" in capsys.readouterr().err


def test_the_loader_asks_for_the_quantiser(monkeypatch):
    quantizer.load_quantizer.cache_clear()
    monkeypatch.setattr(quantizer, "load", lambda: (_ for _ in ()).throw(BackendError("none")))
    with pytest.raises(BackendError):
        quantizer.load_quantizer()
    quantizer.load_quantizer.cache_clear()
