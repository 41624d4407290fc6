"""How fast the CPU library multiplies: milliseconds, GB/s of weights and GFLOP/s, a line a type.

    python -m gguf_hybrid.tools.bench_kernels_cpu --types Q4_K,Q8_0 --rows 1,8,64 --shape 8192x2048

Best of several runs, because others may use the machine. A matrix that fits the last-level cache is
measured hot: take a shape of some 100 MB to see the memory's own speed.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np

from gguf_hybrid.cpu.library import Mode, Pool, load
from gguf_hybrid.weights.ggml import GGMLType, row_nbytes

SECONDS_PER_POINT = 0.3


def best_seconds(run: Callable[[], object]) -> float:
    """The shortest of the runs that fit into `SECONDS_PER_POINT`, at least three."""
    best, end, n_runs = float("inf"), time.perf_counter() + SECONDS_PER_POINT, 0
    while n_runs < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        n_runs += 1
    return best


def measure(
    pool: Pool, mode: Mode, ggml_type: GGMLType, n: int, k: int, rows: Sequence[int]
) -> str:
    """The table line of one type. Every byte is one: no kernel looks at values."""
    blocks = np.ones((n, row_nbytes(ggml_type, k)), np.uint8)
    weight = pool.library.weight(ggml_type, blocks, k)
    cells = []
    for m in rows:
        x = np.random.default_rng(0).standard_normal((m, k)).astype(np.float32)
        seconds = best_seconds(lambda x=x: pool.matmul(mode, x, [weight]))  # type: ignore[misc]
        cells.append(
            f"M={m} {seconds * 1e3:.3f} ms {blocks.nbytes / seconds / 1e9:.1f} GB/s"
            f" {2 * m * n * k / seconds / 1e9:.0f} GFLOP/s"
        )
    return f"{ggml_type.name:7} {mode.name.lower():5} " + " | ".join(cells)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure the products of the CPU library.")
    parser.add_argument("--types", default="Q4_K,Q6_K,Q8_0", help="ggml types, comma-separated")
    parser.add_argument("--rows", default="1,2,4,8,64", help="rows of activations")
    parser.add_argument("--shape", default="8192x2048", help="weights, outputs x inputs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--arithmetic", choices=["exact", "fast"], default="fast")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    n, k = (int(size) for size in options.shape.split("x"))
    rows = [int(m) for m in options.rows.split(",")]
    mode = Mode[options.arithmetic.upper()]
    with Pool(load(), options.threads) as pool:
        print(f"{n} x {k}, {options.threads} threads, {pool.library.variant}")
        for name in options.types.split(","):
            print(measure(pool, mode, GGMLType[name], n, k, rows), flush=True)


if __name__ == "__main__":
    main()
