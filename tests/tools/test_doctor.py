"""``doctor`` finds nothing at a sound model, names what is wrong with others, and says what is."""

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf_hybrid.tools.doctor import main
from gguf_hybrid.tools.doctor_excerpt import Excerpt, cut_down, first_blocks
from gguf_hybrid.tools.doctor_kernels import compare_backends, compare_products
from gguf_hybrid.tools.doctor_laws import Laws
from gguf_hybrid.tools.doctor_report import Budget, Finding, Report

from gguf_hybrid.backend.base import Backend
from gguf_hybrid.backend.cpu import CpuBackend
from gguf_hybrid.demo import demo_path
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.runtime import OpenModel
from gguf_hybrid.runtime_config import RuntimeConfig
from gguf_hybrid.weights.reader import open_gguf

DENSE = Path(__file__).parents[1] / "data" / "models" / "qwen35-tiny-Q4_K_M.gguf"
LAWS = ["batched = alone", "chunked = whole", "restored = uninterrupted", "slot reuse = fresh"]


@pytest.mark.parametrize("path", [DENSE, demo_path()], ids=lambda p: p.stem)
def test_a_sound_model(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", str(path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    checks = {finding["check"]: finding["status"] for finding in report["findings"]}
    assert set(checks.values()) == {"ok"}
    assert {*LAWS, "values", "products, Q4_K", "code words stay apart"} <= checks.keys()
    sizes = report["figures"]["memory"]
    assert sizes["slots_that_fit"]["4096"] >= sizes["slots_that_fit"]["32768"] > 0
    assert report["figures"]["speed"]["one_per_second"] > 0


def test_the_report_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(DENSE)]) == 0
    said = capsys.readouterr().out
    for part in ("ok      batched = alone", "speed: ", "a slot", "slots that fit", "is right"):
        assert part in said


def test_scales_that_are_not_numbers_are_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(DENSE, path)
    tensor = open_gguf(path).tensors["blk.0.ffn_gate.weight"]
    with path.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(struct.pack("<H", 0x7E01))
    assert main([str(path)]) == 1
    said = capsys.readouterr().out
    assert "fault   values: tensor blk.0.ffn_gate.weight" in said
    assert "FAULTS FOUND" in said


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_what_is_no_model_is_refused_in_a_line(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGML" + bytes(60))
    assert main([*flags, str(path)]) == 1
    said = "".join(capsys.readouterr())
    assert said.count("\n") == 1 and "not a GGUF file" in said


def opened() -> OpenModel:
    return OpenModel.open(RuntimeConfig(model=str(demo_path())))


def test_an_excerpt_is_a_prefix_of_the_file() -> None:
    model = opened()
    config = replace(model.config, n_expert_used=2)
    small = cut_down(config, model.tensors.trunk)
    assert set(small.config.recurrent_layers) == {True, False}
    for name, tensor in small.tensors.items():
        whole = model.tensors.trunk[name]
        assert tensor.shape[1:] == whole.shape[1:] and tensor.shape[0] <= whole.shape[0]
        assert np.array_equal(tensor.data, whole.data[: tensor.nbytes])


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference decodes other weights than the library: every quantised type is a fault."""
    from gguf_hybrid.tools import doctor_kernels

    def wrong(*arguments: object) -> object:
        return right(*arguments) * np.float32(1.001)

    right = doctor_kernels.dequantize
    monkeypatch.setattr(doctor_kernels, "dequantize", wrong)
    model = opened()
    findings = list(compare_products(model.tensors.trunk.values(), RuntimeConfig(model="")))
    assert {finding.status for finding in findings} == {"fault"}


def test_a_backend_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is built for another epsilon than the backends that are compared with it."""
    from gguf_hybrid.tools import doctor_kernels

    def wrong(excerpt: Excerpt) -> Backend:
        return right(replace(excerpt, config=replace(excerpt.config, rms_eps=0.5)))

    right = doctor_kernels._reference
    model = opened()
    excerpt = cut_down(model.config, model.tensors.trunk)
    assert {f.status for f in compare_backends(excerpt, RuntimeConfig(model=""))} == {"ok"}
    monkeypatch.setattr(doctor_kernels, "_reference", wrong)
    assert {f.status for f in compare_backends(excerpt, RuntimeConfig(model=""))} == {"fault"}


def test_a_model_that_sees_its_neighbours_breaks_the_law() -> None:
    """Logits that depend on how many rows a step has."""
    model = opened()
    excerpt = first_blocks(model.config, model.tensors.trunk)

    class Leaky(Qwen35):
        def forward(self, step, store):  # type: ignore[no-untyped-def]
            return super().forward(step, store) + np.float32(len(step.rows) - 1)

    leaky = Leaky(excerpt.config, excerpt.tensors, CpuBackend(excerpt.config, 1))
    status = {finding.check: finding.status for finding in Laws(leaky, "").findings()}
    assert status == dict.fromkeys(LAWS, "ok") | {"batched = alone": "fault"}


def test_one_fault_makes_a_report_unsound() -> None:
    findings = (Finding("a", "ok", ""), Finding("b", "skipped", ""), Finding("c", "fault", ""))
    report = Report("f", "cpu", findings, {}, (), 1.0)
    assert not report.is_sound and not report.as_json()["ok"]
    assert replace(report, findings=findings[:2]).is_sound


def test_a_budget_runs_out() -> None:
    assert Budget(1e-9).is_past(1.0) and not Budget(3600).is_past(0.5)
