"""``GGUF_HYBRID_KERNELS``: one grammar, errors that name it, a log line that names every path."""

import logging

import pytest

from gguf_hybrid.backend import select
from gguf_hybrid.backend.kernel_choice import OPERATIONS, SWITCHES, KernelChoice, describe
from gguf_hybrid.backend.mlx_choice import resolve
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.demo import demo_path
from gguf_hybrid.errors import BackendError
from gguf_hybrid.runtime_config import RuntimeConfig
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.reader import open_gguf

CONFIG = RuntimeConfig(model=str(demo_path()), device="cpu")


def _model() -> ModelConfig:
    file = open_gguf(demo_path())
    return ModelConfig.from_metadata(file.metadata, file.tensors)


def _names(text: str) -> set[str]:
    return set(resolve(KernelChoice.parse(text), _model()).names)


def test_words_change_the_default_or_what_the_first_word_says() -> None:
    assert _names("") == set(SWITCHES)
    assert _names("on") == set(SWITCHES)
    assert _names("off") == set()
    assert _names("off,matvec, attend") == {"matvec", "attend"}
    assert _names("-attend") == set(SWITCHES) - {"attend"}
    assert KernelChoice.parse("off").all_off and not KernelChoice.parse("off,attend").all_off


def test_by_default_only_types_that_shrink_are_read_as_blocks() -> None:
    model = _model()
    assert resolve(KernelChoice.parse(""), model).types["matvec"] == {GGMLType.Q6_K}
    assert GGMLType.Q4_K in resolve(KernelChoice.parse("matvec"), model).types["matvec"]
    assert resolve(KernelChoice.parse("matvec"), model).types["down"] == {GGMLType.Q6_K}


@pytest.mark.parametrize("text", ["matvek", "attend,on", "on,", "-", "ON", "attend,,matvec"])
def test_an_unknown_word_is_an_error_that_names_the_variable(text: str) -> None:
    with pytest.raises(BackendError, match=f"GGUF_HYBRID_KERNELS={text}: .*known"):
        KernelChoice.parse(text)


@pytest.mark.parametrize(
    ("value", "name", "line"),
    [
        ("", "cpu (", "CPU library: embed, norm, matvec"),
        ("off", "mlx (cpu)", "stock MLX: embed, norm, matvec"),
    ],
)
def test_the_log_says_which_path_each_operation_takes(
    value: str, name: str, line: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("GGUF_HYBRID_KERNELS", value)
    with caplog.at_level(logging.INFO):
        backend = select.create_backend(_model(), CONFIG)
    assert backend.name.startswith(name)
    (message,) = [r.message for r in caplog.records if r.message.startswith("operations: ")]
    assert line in message
    assert all(operation in message for operation in OPERATIONS)


@pytest.mark.parametrize("value", ["matvec", "off,attend"])
def test_single_operations_are_refused_where_there_is_one_form(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGUF_HYBRID_KERNELS", value)
    with pytest.raises(BackendError, match="GGUF_HYBRID_KERNELS: .*no second form"):
        select.create_backend(_model(), CONFIG)


def test_paths_are_grouped_in_the_order_of_a_pass() -> None:
    paths = dict.fromkeys(OPERATIONS, "stock MLX") | {"norm": "own kernel", "sample": "CPU"}
    text = describe(paths)
    assert (
        text.startswith("stock MLX: embed, matvec, ") and "; own kernel: norm; CPU: sample" in text
    )
