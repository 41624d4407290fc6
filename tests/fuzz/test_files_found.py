"""What the file fuzzer found, each as the smallest case."""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf_hybrid.tools.convert import main as convert

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.demo import demo_path
from gguf_hybrid.errors import GGUFError
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.text.tokenizer import Tokenizer
from gguf_hybrid.weights.ftype import ftype_name
from gguf_hybrid.weights.reader import open_gguf

CHECKPOINT = Path(__file__).parent.parent / "data" / "convert" / "qwen35-tiny"


def damaged(folder: Path, name: str, change: dict[str, Any]) -> Path:
    """The checkpoint with some top-level keys of one JSON file replaced."""
    for path in CHECKPOINT.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / name).unlink()
    value = json.loads((CHECKPOINT / name).read_text()) | change
    (folder / name).write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.safetensors.index.json", {"weight_map": {"a": 1.5, "b": "model.safetensors"}}),
        ("model.safetensors.index.json", {"weight_map": {"a": "../other.safetensors"}}),
        ("config.json", {"vocab_size": 1 << 63}),
        ("config.json", {"text_config": {"layer_types": 1}}),
        ("config.json", {"rope_parameters": "x"}),
        ("tokenizer.json", {"post_processor": 1.5}),
        ("tokenizer.json", {"added_tokens": [None]}),
        ("tokenizer_config.json", {"added_tokens_decoder": []}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}),
    ],
)
def test_a_wrong_kind_of_value_is_refused_in_a_line(
    name: str, change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "checkpoint"
    source.mkdir()
    arguments = [str(damaged(source, name, change)), "--outfile", str(tmp_path / "out.gguf")]
    assert convert(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("gguf-hybrid convert: ") and said.count("\n") == 1
    assert name in said


def test_the_undamaged_checkpoint_is_converted(tmp_path: Path) -> None:
    """The damage above, not the way it is made, is what is refused."""
    source = tmp_path / "checkpoint"
    source.mkdir()
    arguments = [str(damaged(source, "tokenizer.json", {})), "--dry-run"]
    assert convert(arguments) == 0


MODEL = open_gguf(demo_path())
TYPES = MODEL.metadata["tokenizer.ggml.token_type"]


@pytest.mark.parametrize(
    "key",
    [
        "general.type",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.add_bos_token",
        "general.sampling.temp",
        "general.sampling.sequence",
    ],
)
def test_an_array_where_one_value_belongs_is_refused_in_a_line(key: str) -> None:
    metadata = MODEL.metadata | {key: TYPES}
    with pytest.raises(GGUFError, match=rf"^[^\n]*{key}[^\n]*$"):
        ModelConfig.from_metadata(metadata, MODEL.tensors)
        Tokenizer.from_metadata(metadata)
        SamplingParams().with_gguf_metadata(metadata)


def test_a_file_type_that_is_no_number_is_unknown() -> None:
    assert ftype_name({"general.file_type": TYPES}).startswith("unknown")
