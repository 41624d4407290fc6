"""``gguf-hybrid bench kernels``: own kernels against stock MLX, on this machine's own device.

Each operation of a layer runs alone over the same random state, cache and weights: embed, the
operation several times, final norm; the time without the operation is taken off. Where single
kernels can be switched (Metal), each is measured by itself, in the operations that it is part of;
elsewhere the whole backend stands against stock MLX. Without ``-m`` the sizes are those of
Qwen3.6-35B-A3B, with random weights in Q4_K and Q6_K.
"""

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gguf_hybrid.backend.kernel_choice import SWITCHES, VARIABLE
from gguf_hybrid.backend.select import create_backend, require_backend, wants_cpu
from gguf_hybrid.runtime_config import RuntimeConfig

from .bench_arguments import counts, model_config
from .bench_kernels_model import LAYER_OPERATIONS, Bench, Result, Source, of_file, random_35b_a3b
from .bench_report import Cell, print_json, print_rows

PARTS = {
    "matvec": LAYER_OPERATIONS,
    "gate_up": ("feed_forward",),
    "down": ("feed_forward",),
    "top_experts": ("feed_forward",),
    "delta_step": ("gated_delta_net",),
    "attend": ("attend",),
}
"""Operations of a layer that a switch changes."""
WORTH = 1.03
"""Own must win by this much on average to be recommended."""
AGREEMENT = 0.05
"""Largest difference of a result, relative to its largest value, that may be recommended."""


@dataclass(frozen=True, slots=True)
class Line:
    """One operation at one number of rows; seconds."""

    kernel: str
    operation: str
    rows: int
    own: float
    stock: float
    difference: float

    @property
    def ratio(self) -> float:
        """How many times faster than stock."""
        return self.stock / self.own

    def cells(self) -> dict[str, Cell]:
        return {
            "kernel": self.kernel,
            "operation": self.operation,
            "rows": self.rows,
            "own us": 1e6 * self.own,
            "stock us": 1e6 * self.stock,
            "own is x faster": self.ratio,
            "difference": self.difference,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", help="GGUF whose sizes and weights to take")
    parser.add_argument("-t", "--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--arithmetic", choices=("fast", "exact"), default="fast")
    parser.add_argument("--rows", type=counts, default=(1, 4, 8, 32), help="rows of a step")
    parser.add_argument("--context", type=int, default=512, help="tokens each row has behind it")
    parser.add_argument("--repeat", type=int, default=7, help="repetitions; the median counts")
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu")


def run(args: argparse.Namespace) -> int:
    config = model_config(args, device=args.device)
    source = of_file(args.model) if args.model else random_35b_a3b()
    kernels = SWITCHES if _has_switches(config) else {"on": ""}
    print(f"{source.name}, {args.context} tokens of context, median of {args.repeat}")
    stock, stock_name = _measured(source, config, "off", LAYER_OPERATIONS, args)
    lines: list[Line] = []
    own_name = ""
    for kernel in kernels:
        value = kernel if kernel == "on" else f"off,{kernel}"
        own, own_name = _measured(source, config, value, PARTS.get(kernel, LAYER_OPERATIONS), args)
        lines += [
            Line(
                kernel, *key, own[key].seconds, stock[key].seconds, own[key].difference(stock[key])
            )
            for key in own
        ]
    print(f"own: {own_name}; stock: {stock_name}")
    print_rows([line.cells() for line in lines])
    best = recommendation(lines)
    print(f"recommended: {best}")
    print_json(
        {
            "model": source.name,
            "own": own_name,
            "stock": stock_name,
            "context": args.context,
            "repeat": args.repeat,
            "lines": [line.cells() for line in lines],
            "recommended": best,
        }
    )
    return 0


def recommendation(lines: Sequence[Line]) -> str:
    """The line to set in the environment: kernels that win on average and agree."""
    worth = []
    for kernel in dict.fromkeys(line.kernel for line in lines):
        of = [line for line in lines if line.kernel == kernel]
        mean = math.exp(sum(math.log(line.ratio) for line in of) / len(of))
        if mean >= WORTH and all(line.difference <= AGREEMENT for line in of):
            worth.append(kernel)
    if worth == ["on"]:
        return f"{VARIABLE}=on"
    return f"{VARIABLE}={','.join(['off', *worth])}"


def _has_switches(config: RuntimeConfig) -> bool:
    return not wants_cpu(config) and require_backend() == "metal"


def _measured(
    source: Source, config: RuntimeConfig, value: str, operations: Sequence[str],
    args: argparse.Namespace,
) -> tuple[dict[tuple[str, int], Result], str]:  # fmt: skip
    """Results by operation and rows, and the backend's name."""
    with _environment(value):
        backend = create_backend(source.config, config)
        bench = Bench(source, backend, max(args.rows), args.context)
        found = {
            (operation, rows): bench.measure(operation, rows, args.repeat)
            for operation in operations
            for rows in args.rows
        }
    return found, backend.name


@contextmanager
def _environment(value: str) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
