"""Decode and prompt speed of the CUDA backend, bare: no server, no sampler.

    python -m gguf_hybrid.tools.bench_gpu MODEL.gguf --rows 1 4 8 32 --json out.json

Each row first absorbs ``--context`` random tokens, then all rows decode ``--steps`` random tokens
together, logits fetched to the host, as ``llama-batched-bench -npp 512 -ntg 128`` does. The JSON
holds every repetition.

A file of random weights sends all rows to the same experts. With ``--spread`` the router's logits
of decode steps are replaced by noise, fixed for each row and layer: rows then choose as if routing
were uniform and independent, the most expert traffic that a model can cause on average.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from gguf_hybrid.metal.driver import Device

from gguf_hybrid.backend.cuda import CudaBackend
from gguf_hybrid.backend.cuda_decode import MAX_ROWS
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.memory.store import Store, StoreSpec
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.step import BLOCK, ZERO_STATE, Row, Step
from gguf_hybrid.weights.layout import check_tensors
from gguf_hybrid.weights.reader import open_gguf

SEED = 7


@dataclass(frozen=True)
class Decode:
    """``step_ms`` of every timed step of ``rows`` rows."""

    rows: int
    context: int
    step_ms: list[float]

    @property
    def tokens_per_second(self) -> float:
        return self.rows * 1000.0 / float(np.median(self.step_ms))


@dataclass(frozen=True)
class Prompt:
    """``ms`` of every repetition of a prompt of ``tokens`` tokens."""

    tokens: int
    ms: list[float]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens * 1000.0 / float(np.median(self.ms))


class Bench:
    """A loaded model and a store for ``n_rows`` sequences of ``n_ctx`` tokens."""

    def __init__(self, path: Path, n_rows: int, n_ctx: int) -> None:
        began = time.perf_counter()
        file = open_gguf(path)
        config = ModelConfig.from_metadata(file.metadata, file.tensors, str(path))
        self.device = Device()
        self.backend = CudaBackend(config, self.device)
        tensors = dict(check_tensors(config, file.tensors, str(path)).trunk)
        self.model = Qwen35(config, tensors, self.backend)
        self.device.synchronize()
        self.load_s = time.perf_counter() - began
        self._per_row = -(-n_ctx // BLOCK)
        self.store: Store = self.backend.new_store(StoreSpec(2 * n_rows, n_rows * self._per_row))
        self._random = np.random.default_rng(SEED)
        self._n_vocab = config.n_vocab

    def prompt(self, row: int, n: int, n_logits: int = 1) -> float:
        """Milliseconds of a first prompt of ``n`` tokens."""
        step = Step((self._row(row, 0, n, ZERO_STATE, 2 * row, n_logits),))
        return self._timed(step)

    def decode(self, n_rows: int, context: int, n_steps: int) -> Decode:
        for row in range(n_rows):
            self.prompt(row, context)
        times = []
        for i in range(n_steps):
            rows = [
                self._row(r, context + i, 1, 2 * r + i % 2, 2 * r + 1 - i % 2, 1)
                for r in range(n_rows)
            ]
            times.append(self._timed(Step(tuple(rows))))
        return Decode(n_rows, context, times[2:])

    def _row(self, row: int, start: int, n: int, read: int, write: int, n_logits: int) -> Row:
        tokens = self._random.integers(0, self._n_vocab, n).astype(np.int32)
        first = row * self._per_row
        used = -(-(start + n) // BLOCK)
        blocks = np.arange(first, first + used, dtype=np.int32)
        return Row(row, start, tokens, read, (write,), blocks, n_logits, is_decode=n == 1)

    def _timed(self, step: Step) -> float:
        began = time.perf_counter()
        self.model.forward(step, self.store)
        return 1000.0 * (time.perf_counter() - began)


def spread_experts(backend: CudaBackend) -> None:
    """Let decode steps captured from now on choose experts by noise, layer by layer, with the
    kernels and launches of a step as it is."""
    config, device, ops = backend.config, backend.device, backend._decoder._ops
    noise = np.random.default_rng(SEED).normal(size=(config.n_layer, MAX_ROWS, config.n_expert))
    address = device.allocate(4 * noise.size)
    device.upload(address, noise.astype(np.float32))
    device.synchronize()
    stride = 4 * MAX_ROWS * config.n_expert
    layers = itertools.cycle(range(address, address + config.n_layer * stride, stride))
    route = ops.route

    def route_by_noise(_: int, *others: int) -> None:
        route(next(layers), *others)

    ops.route = route_by_noise  # type: ignore[method-assign, assignment]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 32])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--spread", action="store_true", help="rows choose their own experts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    bench = Bench(args.model, max(args.rows), max(args.context + args.steps, args.prompt) + 1)
    if args.spread:
        spread_experts(bench.backend)
    gigabytes = bench.backend.weight_nbytes() / 1e9
    print(f"loaded {gigabytes:.2f} GB in {bench.load_s:.1f} s, {gigabytes / bench.load_s:.2f} GB/s")
    bench.prompt(0, args.prompt)
    prompt = Prompt(args.prompt, [bench.prompt(0, args.prompt) for _ in range(args.repeat)])
    print(f"prompt {args.prompt}: {prompt.tokens_per_second:.0f} tokens/s")
    decodes = []
    for n_rows in args.rows:
        decodes.append(bench.decode(n_rows, args.context, args.steps))
        print(f"decode {n_rows}: {decodes[-1].tokens_per_second:.0f} tokens/s", flush=True)
    record = {
        "command": sys.argv,
        "spread_experts": args.spread,
        "device": bench.backend.name,
        "weight_bytes": bench.backend.weight_nbytes(),
        "load_s": bench.load_s,
        "kernels_compiled": bench.device.cache.compiled,
        "prompt": asdict(prompt) | {"tokens_per_second": prompt.tokens_per_second},
        "decode": [asdict(d) | {"tokens_per_second": d.tokens_per_second} for d in decodes],
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
