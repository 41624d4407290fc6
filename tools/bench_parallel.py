"""``gguf-hybrid bench parallel``: whether N requests really share their passes.

N requests with prompts of their own are handed to the engine at once. If they run in one batch,
they end together, in little more time than one alone, and the engine's counters show about N rows
per pass. The counters tell even where times cannot, on a machine that others use too.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from gguf_hybrid.engine.request import Counters, Done, Failed, Request
from gguf_hybrid.errors import StepError
from gguf_hybrid.runtime import Runtime
from gguf_hybrid.sampling.chain import Sampler
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.text.stop import TextReader

from .bench_arguments import add_model_arguments, counts, model_config
from .bench_report import Cell, print_json, print_rows

PROMPT_ROOM = 64


@dataclass(frozen=True, slots=True)
class ParallelRun:
    """Seconds until each of the requests was done, and what the engine counted meanwhile."""

    seconds: tuple[float, ...]
    passes: int
    decode_passes: int
    decode_rows: int

    @property
    def makespan(self) -> float:
        return max(self.seconds)

    @property
    def rows_per_pass(self) -> float:
        """Decoding rows per pass that decodes."""
        return self.decode_rows / self.decode_passes

    @property
    def spread(self) -> float:
        """How far the first to end is ahead of the last, as a share of the makespan."""
        return 1 - min(self.seconds) / self.makespan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("-n", "--n-predict", type=int, default=128, help="tokens per request")
    parser.add_argument("-npl", type=counts, default=(1, 2, 4, 8), help="numbers of requests")
    parser.add_argument("-r", "--reps", type=int, default=5, help="repetitions, the median counts")


def run(args: argparse.Namespace) -> int:
    runs = asyncio.run(_measure(args))
    alone = runs[0].makespan if args.npl[0] == 1 else None
    rows = [_summary(args.arithmetic, each, alone) for each in runs]
    print_rows([{k: v for k, v in row.items() if k != "seconds"} for row in rows])
    for row in rows:
        print(f"N={row['N']}: completed after", ", ".join(f"{s:.3f}" for s in row["seconds"]), "s")
    print_json({"bench": "parallel", "model": args.model, "points": rows})
    return 0


def _median(runs: Sequence[ParallelRun]) -> ParallelRun:
    """The run whose makespan lies in the middle."""
    return sorted(runs, key=lambda run: run.makespan)[len(runs) // 2]


def _summary(arithmetic: str, each: ParallelRun, alone: float | None) -> dict[str, Any]:
    row: dict[str, Cell] = {
        "arithmetic": arithmetic,
        "N": len(each.seconds),
        "makespan_s": each.makespan,
        "makespan_ratio": each.makespan / alone if alone else None,
        "spread": each.spread,
        "passes": each.passes,
        "rows_per_pass": each.rows_per_pass,
    }
    return {**row, "seconds": list(each.seconds)}


async def _measure(args: argparse.Namespace) -> list[ParallelRun]:
    n_slots = max(args.npl)
    config = model_config(
        args,
        n_parallel=n_slots,
        n_ctx=n_slots * (args.n_predict + PROMPT_ROOM),
        kv_unified=False,
        cache_ram_mib=0,
    )
    runtime = await Runtime.load(config, on_failure=lambda error: None)
    try:
        bench = ParallelBench(runtime, args.n_predict)
        await bench.measure(1)  # the first request pays for buffers the others find
        runs = [[await bench.measure(n) for n in args.npl] for _ in range(args.reps)]
        return [_median(of_n) for of_n in zip(*runs, strict=True)]
    finally:
        await runtime.close()


class ParallelBench:
    """Sends requests to the engine of a runtime."""

    def __init__(self, runtime: Runtime, n_predict: int) -> None:
        self._runtime = runtime
        self._n_predict = n_predict
        self._ids = count()

    async def measure(self, n: int) -> ParallelRun:
        """``n`` requests at once. StepError if one of them fails."""
        requests = [self._request() for _ in range(n)]
        before = replace(self._runtime.worker.counters())
        began = time.perf_counter()
        seconds = await asyncio.gather(*(self._complete(request, began) for request in requests))
        return _run(seconds, before, self._runtime.worker.counters())

    def _request(self) -> Request:
        """The next prompt; none is like another."""
        runtime, number = self._runtime, next(self._ids)
        return Request(
            id=number,
            prompt=tuple(runtime.tokenizer.encode(f"Number {number} of this list means that")),
            sampler=Sampler(SamplingParams(seed=number, ignore_eos=True), runtime.sampling_vocab),
            reader=TextReader(runtime.tokenizer),
            n_predict=self._n_predict,
            cache_prompt=False,
        )

    async def _complete(self, request: Request, began: float) -> float:
        async for event in self._runtime.worker.submit([request]).events():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Done):
                return time.perf_counter() - began
        raise StepError("a request ended without a result")


def _run(seconds: Sequence[float], before: Counters, after: Counters) -> ParallelRun:
    return ParallelRun(
        tuple(seconds),
        after.n_decode - before.n_decode,
        after.n_decode_passes - before.n_decode_passes,
        after.n_decode_rows - before.n_decode_rows,
    )
