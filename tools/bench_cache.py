"""``gguf-hybrid bench cache``: what long agent conversations re-read, and how long one waits.

One conversation alone, then four at once over two slots, each on a freshly started server; with
``--against`` the same on llama-server with the same context, slots, cache and checkpoint flags.
A token is re-read if the server had computed it before at this place of this conversation. Some
warm replies are asked for again without any cache; a warm reply that differs is counted.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from gguf_hybrid.runtime import OpenModel
from gguf_hybrid.text.tokenizer import Tokenizer

from .bench_arguments import add_model_arguments, model_config, n_threads
from .bench_client import Client, together
from .bench_conversation import Conversation, Turn, make_script
from .bench_report import Cell, percentile, print_json, print_rows, ratio
from .bench_server import OURS, ServerUnderTest

N_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Phase:
    """What one server did with some conversations: their turns, and of ``n_checked`` warm replies
    how many the cold ones contradict."""

    conversations: tuple[tuple[Turn, ...], ...]
    n_checked: int
    n_different: int

    @property
    def turns(self) -> list[Turn]:
        return [turn for turns in self.conversations for turn in turns]

    @property
    def reread(self) -> int:
        return sum(turn.reread for turn in self.turns)

    @property
    def n_miscounted(self) -> int:
        """Turns whose cached and read tokens are not the prompt."""
        return sum(turn.cache_n + turn.prompt_n != turn.n_prompt for turn in self.turns)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--turns", type=int, default=20, help="turns of each conversation")
    parser.add_argument("--conversations", type=int, default=4, help="how many at once")
    parser.add_argument(
        "--tool-tokens", type=int, nargs=2, default=(500, 2000), help="least and most of a result"
    )
    parser.add_argument("-n", "--n-predict", type=int, default=64, help="tokens per reply")
    parser.add_argument("-c", "--ctx-size", type=int, default=65536, help="context of all slots")
    parser.add_argument("-cram", "--cache-ram", type=int, default=8192, help="MiB")
    parser.add_argument("-ctxcp", "--ctx-checkpoints", type=int, default=32)
    parser.add_argument("-cms", "--checkpoint-min-step", type=int, default=8192)
    parser.add_argument("--check-every", type=int, default=4, help="turns between cold checks")
    parser.add_argument("--against", metavar="PATH", help="a llama-server to compare with")


def run(args: argparse.Namespace) -> int:
    tokenizer = Tokenizer.from_metadata(OpenModel.open(model_config(args)).metadata)
    results: dict[str, dict[str, Phase]] = {}
    for name, n_together in (("alone", 1), ("together", args.conversations)):
        phases = {}
        for server in servers_of(args):
            with server:
                phases[server.name] = converse(args, tokenizer, server, n_together)
        results[name] = phases
        _print_turns(name, phases)
    rows = [_summary(args.arithmetic, name, phases) for name, phases in results.items()]
    print_rows(rows)
    print_json({"bench": "cache", "model": args.model, "phases": rows})
    return int(any(_is_wrong(phases["ours"]) for phases in results.values()))


def servers_of(args: argparse.Namespace) -> list[ServerUnderTest]:
    flags = ["-m", args.model, "-c", str(args.ctx_size), "-np", str(N_SLOTS)]
    flags += ["--cache-ram", str(args.cache_ram), "--ctx-checkpoints", str(args.ctx_checkpoints)]
    flags += ["--checkpoint-min-step", str(args.checkpoint_min_step)]
    flags += ["-t", str(n_threads(args))]
    servers = [ServerUnderTest("ours", OURS, [*flags, "--arithmetic", args.arithmetic])]
    if args.against:
        servers.append(ServerUnderTest("against", [args.against], flags))
    return servers


def converse(
    args: argparse.Namespace, tokenizer: Tokenizer, server: ServerUnderTest, n_together: int
) -> Phase:
    """All turns of ``n_together`` conversations at once, then the cold checks one by one."""
    scripts = [
        make_script(tokenizer, args.turns, args.tool_tokens, seed) for seed in range(n_together)
    ]
    client = Client(server.port)
    conversations = [Conversation(client, tokenizer, each, args.n_predict) for each in scripts]

    def talk(conversation: Conversation) -> None:
        for _ in range(args.turns):
            conversation.next_turn()

    together([partial(talk, conversation) for conversation in conversations])
    checked = range(args.check_every - 1, args.turns, args.check_every)
    n_different = sum(
        conversation.cold_reply(turn) != conversation.turns[turn].reply
        for conversation in conversations
        for turn in checked
    )
    turns = tuple(tuple(conversation.turns) for conversation in conversations)
    return Phase(turns, len(checked) * n_together, n_different)


def _print_turns(name: str, phases: dict[str, Phase]) -> None:
    """Turn by turn, over the conversations: tokens summed, the median wait."""
    print(f"{name}:")
    n_turns = len(phases["ours"].conversations[0])
    print_rows([_turn_row(number, phases) for number in range(n_turns)])


def _turn_row(number: int, phases: dict[str, Phase]) -> dict[str, Cell]:
    row: dict[str, Cell] = {"turn": number + 1}
    for name, phase in phases.items():
        turns = [turns[number] for turns in phase.conversations]
        row[f"{name}_prompt"] = sum(turn.n_prompt for turn in turns)
        row[f"{name}_read"] = sum(turn.prompt_n for turn in turns)
        row[f"{name}_reread"] = sum(turn.reread for turn in turns)
        row[f"{name}_ttft_ms"] = 1000 * median(turn.ttft for turn in turns)
    return row


def _summary(arithmetic: str, name: str, phases: dict[str, Phase]) -> dict[str, Any]:
    row: dict[str, Cell] = {"arithmetic": arithmetic, "phase": name}
    for server, phase in phases.items():
        waits = [1000 * turn.ttft for turn in phase.turns]
        row[f"{server}_read"] = sum(turn.prompt_n for turn in phase.turns)
        row[f"{server}_reread"] = phase.reread
        row[f"{server}_ttft_ms"] = median(waits)
        row[f"{server}_ttft_p90_ms"] = percentile(waits, 0.9)
        row[f"{server}_differ"] = f"{phase.n_different}/{phase.n_checked}"
    if "against" in phases:
        row["ratio_reread"] = ratio(phases["ours"].reread, phases["against"].reread)
    return row


def _is_wrong(phase: Phase) -> bool:
    return phase.n_different > 0 or phase.n_miscounted > 0
