"""Loading takes the weights in their form in memory, the largest tensor and little besides."""

import json
import subprocess
import sys

import pytest

from .models import path_of

PROGRAM = """
import json, re, sys
from pathlib import Path
import mlx.core as mx
from gguf_hybrid.backend.cpu import CpuBackend
from gguf_hybrid.backend.mlx import MlxBackend
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.fit import mlx_nbytes
from gguf_hybrid.model.qwen35 import load
from gguf_hybrid.weights.reader import open_gguf

def status(key):
    return 1024 * int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

file = open_gguf(sys.argv[1])
config = ModelConfig.from_metadata(file.metadata, file.tensors)
backend = MlxBackend(config, mx.cpu) if sys.argv[2] == "mlx" else CpuBackend(config)
mx.eval(mx.ones((64, 64)) @ mx.ones((64, 64)))
before = status("VmRSS")
model = load(file, config, backend)
print(json.dumps({
    "peak": status("VmHWM") - before,
    "form": mlx_nbytes(file.tensors.values()) if sys.argv[2] == "mlx" else file.nbytes,
    "largest": max(mlx_nbytes([t]) for t in file.tensors.values()),
}))
"""
SLACK = 32 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("backend", ["mlx", "cpu"])
@pytest.mark.parametrize("name", ["qwen35moe-tiny-BF16", "qwen35moe-tiny-Q8_0"])
def test_peak_memory_of_loading(name: str, backend: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(path_of(name)), backend]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    seen = json.loads(done.stdout)
    assert seen["peak"] < seen["form"] + seen["largest"] + SLACK, seen
