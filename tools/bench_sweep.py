"""``gguf-hybrid bench``: prompt and batched decode speed of the bare model.

Counted as llama-batched-bench counts. Beside each decode speed stands its floor: what this
machine's memory would allow if a step cost nothing but reading its weights. With ``--against`` that
program runs on the same file with the same flags, in alternation, so that both see the same
machine; figures are medians over the repetitions.
"""

import argparse
import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gguf_hybrid.backend.select import compiled_cpu
from gguf_hybrid.errors import BackendError
from gguf_hybrid.runtime import OpenModel
from gguf_hybrid.runtime_config import RuntimeConfig

from .bench_arguments import add_model_arguments, counts, model_config
from .bench_memory import anonymous_nbytes, read_bandwidth, step_nbytes
from .bench_model import BareModel, Point
from .bench_report import Cell, print_json, print_rows, ratio

CTX_STEP = 256
MB = 1e6


@dataclass(frozen=True, slots=True)
class Sizes:
    """The grid: ``pp`` and ``tg`` tokens for each number of sequences in ``pl``."""

    pp: int
    tg: int
    pl: tuple[int, ...]

    @property
    def n_ctx(self) -> int:
        """Tokens a sequence must hold."""
        return -(-(self.pp + self.tg) // CTX_STEP) * CTX_STEP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("-npp", type=int, default=512, help="tokens of each prompt")
    parser.add_argument("-ntg", type=int, default=128, help="tokens to generate per sequence")
    parser.add_argument("-npl", type=counts, default=(1, 2, 4, 8), help="numbers of sequences")
    parser.add_argument("-r", "--reps", type=int, default=5, help="repetitions")
    parser.add_argument("--against", metavar="PATH", help="a llama-batched-bench to compare with")


def run(args: argparse.Namespace) -> int:
    sizes = Sizes(args.npp, args.ntg, args.npl)
    config = model_config(args)
    opened = OpenModel.open(config)
    bandwidth = read_bandwidth(config.n_threads)
    command = peer_command(args.against, sizes, config) if args.against else None
    if command:
        print("against:", shlex.join(command))
    ours, theirs, beyond = _measure(opened, config, sizes, args.reps, command)
    label = config.arithmetic if compiled_cpu(config) else "mlx"
    points = []
    for pl in sizes.pl:
        floor = pl * bandwidth / step_nbytes(opened.config, opened.tensors.trunk, pl)
        points.append(_summary(label, floor, ours[pl], theirs.get(pl)))
    print_rows(points)
    shown = "unknown" if beyond is None else f"{beyond / MB:.0f} MB"
    print(f"memory bandwidth {bandwidth / 1e9:.1f} GB/s read, {config.n_threads} threads")
    print(f"anonymous memory beyond state and KV: {shown}")
    result = {"bench": "sweep", "model": config.model, "arithmetic": label, "reps": args.reps}
    memory = {"bandwidth": bandwidth, "anonymous_beyond_state_and_kv": beyond}
    print_json({**result, "threads": config.n_threads, **memory, "points": points})
    return 0


def _measure(
    opened: OpenModel,
    config: RuntimeConfig,
    sizes: Sizes,
    reps: int,
    command: Sequence[str] | None,
) -> tuple[dict[int, list[Point]], dict[int, list[Point]], int | None]:
    """Points by number of sequences, ours and theirs, and our anonymous memory."""
    bare = BareModel(opened, config, max(sizes.pl), sizes.n_ctx)
    ours: dict[int, list[Point]] = {}
    theirs: dict[int, list[Point]] = {}
    beyond: list[int] = []
    for _ in range(reps):
        for pl in sizes.pl:
            ours.setdefault(pl, []).append(bare.measure(sizes.pp, sizes.tg, pl))
            taken = anonymous_nbytes()
            # The state pool is committed in full only by the widest point.
            if taken is not None and pl == max(sizes.pl):
                beyond.append(taken - bare.memory.nbytes())
        for point in peer_points(command) if command else ():
            theirs.setdefault(point.pl, []).append(point)
    return ours, theirs, max(beyond, default=None)


def _summary(
    label: str, floor: float, ours: Sequence[Point], theirs: Sequence[Point] | None
) -> dict[str, Cell]:
    pp, tg = (median(p.speed_pp for p in ours), median(p.speed_tg for p in ours))
    row: dict[str, Cell] = {
        "arithmetic": label,
        "PP": ours[0].pp,
        "TG": ours[0].tg,
        "B": ours[0].pl,
        "S_PP": pp,
        "S_TG": tg,
        "floor_TG": floor,
        "of_floor": tg / floor,
    }
    if theirs:
        their_pp = median(p.speed_pp for p in theirs)
        their_tg = median(p.speed_tg for p in theirs)
        row |= {"their_PP": their_pp, "their_TG": their_tg}
        row |= {"ratio_PP": ratio(pp, their_pp), "ratio_TG": ratio(tg, their_tg)}
    return row


def peer_command(program: str, sizes: Sizes, config: RuntimeConfig) -> list[str]:
    """llama-batched-bench with our flags."""
    n_ctx = max(sizes.pl) * sizes.n_ctx
    pl = ",".join(map(str, sizes.pl))
    return [
        *(program, "-m", config.model, "-c", str(n_ctx), "-ub", str(config.n_ubatch)),
        *("-t", str(config.n_threads)),
        *("-npp", str(sizes.pp), "-ntg", str(sizes.tg), "-npl", pl),
        *("-fa", "on", "-ctk", "f16", "-ctv", "f16", "--output-format", "jsonl"),
    ]


def peer_points(command: Sequence[str]) -> list[Point]:
    """Run it once. BackendError if it fails or prints no figures."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    points = [_peer_point(json.loads(line)) for line in done.stdout.splitlines() if line[:1] == "{"]
    if done.returncode or not points:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise BackendError(f"{command[0]} ended with code {done.returncode}: {last}")
    return points


def _peer_point(fields: dict[str, Any]) -> Point:
    return Point(fields["pp"], fields["tg"], fields["pl"], fields["t_pp"], fields["t_tg"])
