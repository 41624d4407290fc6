"""``gguf-hybrid bench http``: the sweep again, through the server.

Clients ask ``/completion`` for streams, with prompts of random tokens, all at the same moment. With
``--against`` llama-server is started on the same file with the same flags and takes turns.
Both servers stay loaded; the one that is not asked sleeps. ``--bare`` repeats it without a server
(``bench_bare``), after the servers have gone: the ratio is what HTTP and threads cost.
"""

import argparse
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median

import numpy as np

from gguf_hybrid.memory.kv import n_blocks_for
from gguf_hybrid.step import BLOCK

from .bench_arguments import add_model_arguments, counts, model_config, n_threads
from .bench_bare import BareEngine, BareVolley
from .bench_client import Client, Stream, together
from .bench_report import Cell, print_json, print_rows, ratio
from .bench_server import OURS, ServerUnderTest
from .bench_volley import Volley

FIRST_PLAIN_ID = 300
"""Byte-level vocabularies begin with single bytes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("-npp", type=int, default=512, help="tokens of each prompt")
    parser.add_argument("-ntg", type=int, default=128, help="tokens to generate per stream")
    parser.add_argument("-npl", type=counts, default=(1, 4), help="numbers of clients")
    parser.add_argument("-r", "--reps", type=int, default=3, help="repetitions")
    parser.add_argument("--bare", action="store_true", help="compare with the engine alone, too")
    parser.add_argument("--against", metavar="PATH", help="a llama-server to compare with")


def run(args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        servers = [stack.enter_context(server) for server in servers_of(args)]
        volleys = _measure(args, servers)
    rows = [_summary(args, n, *(of_server[n] for of_server in volleys)) for n in args.npl]
    if args.bare:
        for row, (n, bare) in zip(rows, _measure_bare(args).items(), strict=True):
            row.update(_beside_bare(volleys[0][n], bare))
    print_rows(rows)
    print_json({"bench": "http", "model": args.model, "reps": args.reps, "points": rows})
    return 0


def servers_of(args: argparse.Namespace) -> list[ServerUnderTest]:
    """Ours, and the one it is measured against."""
    n_slots = str(max(args.npl))
    flags = ["-m", args.model, "-c", str(_n_ctx(args)), "-np", n_slots, "--cache-ram", "0"]
    flags += ["-fa", "on", "-ctk", "f16", "-ctv", "f16"]
    flags += ["-t", str(n_threads(args))]
    servers = [ServerUnderTest("ours", OURS, [*flags, "--arithmetic", args.arithmetic])]
    if args.against:
        servers.append(ServerUnderTest("against", [args.against], flags))
    return servers


def _n_ctx(args: argparse.Namespace) -> int:
    """Whole KV blocks for every client."""
    n_tokens: int = args.npp + args.ntg + 1
    return int(max(args.npl)) * n_blocks_for(n_tokens) * BLOCK


def _measure(
    args: argparse.Namespace, servers: Sequence[ServerUnderTest]
) -> list[dict[int, list[Volley]]]:
    """Per server: the volleys by number of clients."""
    rng = np.random.default_rng(0)
    clients = [Client(server.port) for server in servers]
    n_vocab = clients[0].get("/v1/models")["data"][0]["meta"]["n_vocab"]

    def prompts(n: int) -> list[list[int]]:
        return _prompts(rng, n, n_vocab, args.npp)

    volleys: list[dict[int, list[Volley]]] = [{n: [] for n in args.npl} for _ in servers]
    for client in clients:
        volley(client, prompts(1), 4)
    for _ in range(args.reps):
        for n in args.npl:
            same = prompts(n)
            for client, of_server in zip(clients, volleys, strict=True):
                of_server[n].append(volley(client, same, args.ntg))
    return volleys


def _prompts(rng: np.random.Generator, n: int, n_vocab: int, length: int) -> list[list[int]]:
    ids = rng.integers(min(FIRST_PLAIN_ID, n_vocab // 2), n_vocab, (n, length))
    return [row.tolist() for row in ids]


def _measure_bare(args: argparse.Namespace) -> dict[int, list[BareVolley]]:
    """The volleys of the engine alone, with the server's settings."""
    fields = {"n_ctx": _n_ctx(args), "n_parallel": max(args.npl), "cache_ram_mib": 0}
    engine = BareEngine(model_config(args, kv_unified=False, **fields))
    rng = np.random.default_rng(0)
    volleys: dict[int, list[BareVolley]] = {n: [] for n in args.npl}
    engine.volley(_prompts(rng, max(args.npl), engine.n_vocab, args.npp), 4)
    for _ in range(args.reps):
        for n in args.npl:
            prompts = _prompts(rng, n, engine.n_vocab, args.npp)
            volleys[n].append(engine.volley(prompts, args.ntg))
    return volleys


def _beside_bare(ours: Sequence[Volley], bare: Sequence[BareVolley]) -> dict[str, Cell]:
    row: dict[str, Cell] = {
        "bare_TG": median(v.speed_tg for v in bare),
        "bare_all": median(v.speed for v in bare),
        "bare_step_ms": median(v.step_ms for v in bare),
        "bare_host_ms": median(v.host_ms for v in bare),
    }
    row["TG_of_bare"] = ratio(median(v.speed_tg for v in ours), median(v.speed_tg for v in bare))
    row["all_of_bare"] = ratio(median(v.speed for v in ours), median(v.speed for v in bare))
    return row


def volley(client: Client, prompts: Sequence[Sequence[int]], n_predict: int) -> Volley:
    """One stream per prompt, all started together."""
    start = threading.Barrier(len(prompts))

    def ask(prompt: Sequence[int]) -> Stream:
        body = {
            "prompt": prompt,
            "n_predict": n_predict,
            "ignore_eos": True,
            "cache_prompt": False,
            "seed": 1,
        }
        start.wait()
        return client.stream("/completion", body)

    streams = together([partial(ask, prompt) for prompt in prompts])
    began, ended = min(s.began for s in streams), max(s.ended for s in streams)
    firsts = [s.first for s in streams]
    return Volley(
        len(prompts),
        len(prompts[0]),
        n_predict,
        max(firsts) - began,
        ended - min(firsts),
        ended - began,
        max(s.longest_gap for s in streams),
    )


def _summary(
    args: argparse.Namespace,
    n_clients: int,
    ours: Sequence[Volley],
    theirs: Sequence[Volley] = (),
) -> dict[str, Cell]:
    row: dict[str, Cell] = {
        "arithmetic": args.arithmetic,
        "clients": n_clients,
        "PP": args.npp,
        "TG": args.ntg,
    }
    figures: dict[str, Callable[[Volley], float]] = {
        "PP": lambda v: v.speed_pp,
        "TG": lambda v: v.speed_tg,
        "all": lambda v: v.speed,
    }
    for name, figure in figures.items():
        row[f"S_{name}"] = median(map(figure, ours))
    row["gap_ms"] = 1000 * max(v.longest_gap for v in ours)
    if theirs:
        for name, figure in figures.items():
            row[f"their_{name}"] = median(map(figure, theirs))
        row["their_gap_ms"] = 1000 * max(v.longest_gap for v in theirs)
        for name, figure in figures.items():
            row[f"ratio_{name}"] = ratio(median(map(figure, ours)), median(map(figure, theirs)))
    return row
