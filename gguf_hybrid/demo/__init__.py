"""The embedded model: a small trained Qwen3.5-architecture mixture of experts (see README.md)."""

from importlib.resources import files
from pathlib import Path

NAME = "qwen35moe-tiny-Q4_K_M.gguf"


def demo_path() -> Path:
    """Where the embedded model lies once the package is installed."""
    return Path(str(files(__name__) / NAME))
