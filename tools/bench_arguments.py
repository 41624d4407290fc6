"""Arguments that several benchmarks share."""

import argparse
import os

from gguf_hybrid.demo import demo_path
from gguf_hybrid.runtime_config import RuntimeConfig


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """``-m``, ``-t`` and ``--arithmetic``."""
    parser.add_argument("-m", "--model", default=str(demo_path()), help="GGUF (default: the demo)")
    parser.add_argument("-t", "--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--arithmetic", choices=("fast", "exact"), default="fast")


def model_config(args: argparse.Namespace, **fields: object) -> RuntimeConfig:
    return RuntimeConfig(
        model=args.model,
        n_threads=n_threads(args),
        arithmetic=args.arithmetic,
        **fields,  # type: ignore[arg-type]
    )


def n_threads(args: argparse.Namespace) -> int:
    """The threads that ``-t`` means. Both sides of a comparison are told the same number."""
    if args.threads is not None:
        return int(args.threads)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def counts(text: str) -> tuple[int, ...]:
    """``1,2,4`` as numbers; ValueError for anything below one."""
    values = tuple(int(part) for part in text.split(","))
    if min(values) < 1:
        raise ValueError(text)
    return values
