"""gguf-hybrid: hybrid Gated-DeltaNet models from GGUF files, served to many users at once."""

from importlib.metadata import version

__version__ = version("gguf-hybrid")
