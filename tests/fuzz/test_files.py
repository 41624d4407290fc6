"""Damaged files do no harm: each is answered, refused in one line, or fails its request only.

The small form of ``python -m fuzz.files``, which runs in a process of its own because forking
wants one without threads.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.demo import demo_path
from gguf_hybrid.errors import GgufHybridError
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.text.template import ChatTemplate
from gguf_hybrid.text.tokenizer import Tokenizer
from gguf_hybrid.weights.ftype import ftype_name
from gguf_hybrid.weights.layout import check_tensors
from gguf_hybrid.weights.reader import open_gguf

TESTS = Path(__file__).parent.parent
MODEL = open_gguf(demo_path())
KEYS = sorted(MODEL.metadata)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.integers(-2, 300),
    st.floats(width=32),
    st.text(max_size=40),
    st.just(MODEL.metadata["tokenizer.ggml.tokens"]),
    st.just(MODEL.metadata["tokenizer.ggml.token_type"]),
)


def fuzzed(kind: str, n: int, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "fuzz.files", kind, "-n", str(n), "--seed", str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True)
    assert done.stdout, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(("kind", "n"), [("gguf", 300), ("convert", 60), ("slot", 60)])
def test_damaged_files_do_no_harm(kind: str, n: int) -> None:
    result = fuzzed(kind, n, seed=1)
    assert result["faults"] == []
    assert sum(result["ended"].values()) == n
    assert {"answered", "refused"} <= result["ended"].keys(), "the mutants are all of one kind"


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "n"), [("gguf", 10_000), ("convert", 1_000), ("slot", 1_000)])
def test_very_many_damaged_files_do_no_harm(kind: str, n: int) -> None:
    assert fuzzed(kind, n, seed=2)["faults"] == []


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_metadata_is_taken_or_refused_in_a_line(change: dict[str, Any]) -> None:
    """None stands for a key that is missing."""
    merged = MODEL.metadata | change
    metadata = {key: value for key, value in merged.items() if value is not None}
    try:
        config = ModelConfig.from_metadata(metadata, MODEL.tensors, "model")
        check_tensors(config, MODEL.tensors)
        Tokenizer.from_metadata(metadata).encode("Hello")
        SamplingParams().with_gguf_metadata(metadata)
        ftype_name(metadata)
        ChatTemplate(str(metadata.get("tokenizer.chat_template", "chatml")))
    except GgufHybridError as error:
        assert str(error) and "\n" not in str(error)
