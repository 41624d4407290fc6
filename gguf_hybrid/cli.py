"""``gguf-hybrid``: one command, a sub-command per program. Programs are imported when called."""

import sys
from importlib import import_module

from gguf_hybrid import __version__

COMMANDS = {
    "serve": ("gguf_hybrid.server.__main__", "serve a model over HTTP (llama-server's flags)"),
    "inspect": ("gguf_hybrid.tools.inspect", "show what a GGUF file holds and what fits in memory"),
    "bench": ("gguf_hybrid.tools.bench", "measure speed"),
    "doctor": ("gguf_hybrid.tools.doctor", "prove that a file is served rightly on this machine"),
    "convert": ("gguf_hybrid.tools.convert", "Hugging Face checkpoint to GGUF"),
    "quantize": ("gguf_hybrid.tools.quantize", "GGUF to a smaller GGUF"),
    "split": ("gguf_hybrid.tools.split", "one GGUF to several shards"),
    "merge": ("gguf_hybrid.tools.merge", "several shards to one GGUF"),
}


def main(argv: list[str] | None = None) -> int:
    """Run a sub-command; returns its exit code."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in {"-h", "--help"}:
        print(_usage())
        return 0 if args else 1
    if args[0] == "--version":
        print(f"gguf-hybrid {__version__}")
        return 0
    if args[0] not in COMMANDS:
        print(f"gguf-hybrid: unknown command '{args[0]}'; see --help", file=sys.stderr)
        return 1
    module = import_module(COMMANDS[args[0]][0])
    rest = args[1:]
    if args[0] == "serve":
        return int(module.main(rest, demo_without_model=True))
    return int(module.main(rest))


def _usage() -> str:
    lines = [f"  {name:9} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(["usage: gguf-hybrid COMMAND [arguments]", "", *lines])
