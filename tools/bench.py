"""``gguf-hybrid bench``: what is measured, by name; without a name the sweep of the bare model.

Every benchmark prints tables for people, and as its last line one JSON object.
"""

import argparse
import signal
import sys
from collections.abc import Sequence

from gguf_hybrid.errors import GgufHybridError

from . import bench_cache, bench_http, bench_kernels, bench_parallel, bench_soak, bench_sweep

BENCHMARKS = {
    "sweep": (bench_sweep, "prompt and batched decode speed of the bare model"),
    "kernels": (bench_kernels, "own kernels against stock MLX, each operation alone"),
    "parallel": (bench_parallel, "whether requests really run in one batch"),
    "http": (bench_http, "the same speeds through the server"),
    "cache": (bench_cache, "what a long agent conversation re-reads"),
    "soak": (bench_soak, "mixed clients for minutes: memory, answers, delays"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark; its exit code, or 1 with one line on standard error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0] not in BENCHMARKS and arguments[0] not in {"-h", "--help"}):
        arguments.insert(0, "sweep")
    args = _parser().parse_args(arguments)
    # However the benchmark ends, the servers it has started are stopped.
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return int(args.run(args))
    except GgufHybridError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gguf-hybrid bench", description="Measure speed.")
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for name, (module, text) in BENCHMARKS.items():
        command = commands.add_parser(name, help=text, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
