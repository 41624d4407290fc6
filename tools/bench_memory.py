"""What memory costs: its speed on this machine, what a step has to read, what the process takes."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.weights.reader import TensorInfo

PROBE_NBYTES = 256 << 20
N_PROBES = 5


def read_bandwidth(n_threads: int) -> float:
    """Bytes per second that ``n_threads`` read together: the best of several passes over far more
    than the caches hold. Taking a maximum is the cheapest reading numpy has."""
    parts = np.array_split(np.ones(PROBE_NBYTES // 4, np.float32), n_threads)
    best = 0.0
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(N_PROBES):
            began = time.perf_counter()
            for _ in pool.map(np.max, parts):
                pass
            best = max(best, PROBE_NBYTES / (time.perf_counter() - began))
    return best


def step_nbytes(config: ModelConfig, trunk: Mapping[str, TensorInfo], n_rows: int) -> float:
    """Bytes of weights that a pass over ``n_rows`` rows of one token must read.

    Of experts those that at least one row is expected to choose, if all choose evenly:
    E (1 - (1 - k/E)^n). Of an embedding that is not the head as well, a line per row.
    """
    total = 0.0
    for name, tensor in trunk.items():
        share = 1.0
        if name == "token_embd.weight" and not config.tied:
            share = min(1.0, n_rows / tensor.shape[0])
        elif len(tensor.shape) == 3:
            share = 1 - (1 - config.n_expert_used / config.n_expert) ** n_rows
        total += share * tensor.nbytes
    return total


def anonymous_nbytes(pid: int | str = "self") -> int | None:
    """Anonymous memory of a process (not the mapped model file); None where the system does not
    tell."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    if not rollup.exists():
        return None
    fields = dict(line.split(":", 1) for line in rollup.read_text().splitlines()[1:])
    return 1024 * int(fields["Anonymous"].split()[0])
