"""``gguf-hybrid doctor``: whether a GGUF file is served rightly on this very machine.

Checks the file, compares the kernels in use with their references on the file's own tensors, and
proves the laws of serving many at once on the model. What would take longer than ``--minutes`` is
sampled, and the report says so.
"""

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gguf_hybrid.backend.select import create_backend, free_memory, require_backend
from gguf_hybrid.cpu import library
from gguf_hybrid.errors import GgufHybridError
from gguf_hybrid.fit import MIB, check_fits
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.runtime import OpenModel, memory_demand
from gguf_hybrid.runtime_config import RuntimeConfig
from gguf_hybrid.text.tokenizer import Tokenizer
from gguf_hybrid.weights.decode import needs_decoding
from gguf_hybrid.weights.reader import GGUFFile

from .check import structure_problems, value_problems
from .doctor_code_words import CodeWords
from .doctor_excerpt import Excerpt, cut_down, first_blocks
from .doctor_figures import memory, speed
from .doctor_kernels import compare_backends, compare_products
from .doctor_laws import N_CTX, Laws
from .doctor_report import Budget, Finding, Report, judged

VALUES_SHARE = 0.4
"""Part of the time after which no further tensor is read in full."""
LAWS_SHARE = 0.35
"""Part of the time the laws may take on the whole model."""
LAWS_TOKENS, LAWS_PASSES = 1500, 150
"""About what the laws and the code words take of a model."""
N_PROBLEMS_SHOWN = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; 0 if everything is right, else 1."""
    args = _parser().parse_args(argv)
    logging.disable(logging.CRITICAL)  # what fails is a finding, or the one line below
    try:
        report = examine(RuntimeConfig(model=args.file), 60 * args.minutes)
    except GgufHybridError as error:
        if args.json:
            print(json.dumps({"ok": False, "error": str(error)}))
        else:
            print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        logging.disable(logging.NOTSET)
    print(json.dumps(report.as_json(), indent=2) if args.json else "\n".join(_lines(report)))
    return 0 if report.is_sound else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gguf-hybrid doctor", description="Prove that a GGUF file is served rightly here."
    )
    parser.add_argument("file", help="a GGUF file, or any shard of a split one")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument(
        "--minutes", type=_minutes, default=2.0, metavar="M", help="time to spend (default 2)"
    )
    return parser


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("not a number of minutes above 0")
    return value


def examine(config: RuntimeConfig, seconds: float) -> Report:
    """All checks of one file. Raises GgufHybridError if it cannot be served at all."""
    budget = Budget(seconds)
    require_backend()
    opened = OpenModel.open(config)
    findings = [*_file_findings(opened.file, budget)]
    findings += compare_products(opened.tensors.trunk.values(), config)
    small = cut_down(opened.config, opened.tensors.trunk)
    findings += compare_backends(small, config)
    model, name, figures = _load(opened, config)
    findings += _model_findings(model, opened, config, figures["speed"], budget)
    figures["memory"] = memory(opened, config)
    unsupported = tuple(_not_supported(opened, config))
    return Report(config.model, name, tuple(findings), figures, unsupported, budget.used)


def _file_findings(file: GGUFFile, budget: Budget) -> Iterator[Finding]:
    """Structure and values; tensors in random order, so that a part of them is a sample."""
    problems = list(structure_problems(file))
    yield _problems_finding("structure, tokenizer, template", problems, "sound")
    tensors = list(file.tensors.values())
    n_read, n_bytes, problems = 0, 0, []
    for i in np.random.default_rng(0).permutation(len(tensors)):
        if budget.is_past(VALUES_SHARE):
            break
        problems += value_problems(tensors[i])
        n_read, n_bytes = n_read + 1, n_bytes + tensors[i].nbytes
    extent = f"{n_read} of {len(tensors)} tensors ({n_bytes / MIB:.0f} MiB) read in full"
    yield _problems_finding("values", problems, extent)


def _problems_finding(check: str, problems: list[str], otherwise: str) -> Finding:
    shown = "; ".join(problems[:N_PROBLEMS_SHOWN])
    more = len(problems) - N_PROBLEMS_SHOWN
    detail = f"{shown} and {more} more" if more > 0 else shown
    return judged(check, not problems, detail or otherwise)


def _load(opened: OpenModel, config: RuntimeConfig) -> tuple[Qwen35, str, dict[str, Any]]:
    """The whole model, its backend's name and its speed; MemoryLimitError if it does not fit."""
    check_fits(memory_demand(opened, config, 4), 4 * N_CTX, free_memory(config))
    backend = create_backend(opened.config, config)
    model = Qwen35(opened.config, opened.tensors.trunk, backend)
    return model, backend.name, {"speed": speed(model)}


def _model_findings(
    model: Qwen35,
    opened: OpenModel,
    config: RuntimeConfig,
    speeds: dict[str, float],
    budget: Budget,
) -> Iterator[Finding]:
    """The laws, on the whole model if there is time for that, else on its first blocks."""
    note = "whole model"
    expected = LAWS_TOKENS / speeds["prompt_per_second"] + LAWS_PASSES / speeds["one_per_second"]
    if expected > min(budget.left, LAWS_SHARE * budget.total):
        excerpt = first_blocks(opened.config, opened.tensors.trunk)
        model, note = _model_of(excerpt, config), excerpt.note
    yield from Laws(model, note).findings()
    yield CodeWords(model, Tokenizer.from_metadata(opened.metadata)).finding(note)


def _model_of(excerpt: Excerpt, config: RuntimeConfig) -> Qwen35:
    return Qwen35(excerpt.config, excerpt.tensors, create_backend(excerpt.config, config))


def _not_supported(opened: OpenModel, config: RuntimeConfig) -> Iterator[str]:
    """What the file has and this project leaves unused, and what it serves less well."""
    if opened.tensors.mtp:
        yield "the next-token (MTP) block is not used unless --spec-type asks for it"
    if library.find() is None:
        yield "the compiled CPU library is not built: on a CPU plain MLX computes, which is slow"
    else:
        kernel_types = library.load().types()
        trunk = opened.tensors.trunk.values()
        names = sorted({t.type.name for t in trunk if needs_decoding(t, kernel_types)})
        if names:
            yield f"no CPU kernel for {', '.join(names)}: decoded to float32 when loaded"
    if "tokenizer.chat_template" not in opened.metadata:
        yield "the file has no chat template: chat requests are written as ChatML"


def _lines(report: Report) -> Iterator[str]:
    """The report for people."""
    yield f"{report.file} on {report.backend}"
    yield from (finding.line() for finding in report.findings)
    speeds, sizes = report.figures["speed"], report.figures["memory"]
    yield (
        f"speed: prompt {speeds['prompt_per_second']:.1f} tokens/s, one sequence"
        f" {speeds['one_per_second']:.1f}, {speeds['together']} together"
        f" {speeds['together_per_second']:.1f}"
    )
    slots = ", ".join(f"{n} with {ctx} tokens" for ctx, n in sizes["slots_that_fit"].items())
    yield (
        f"memory: {sizes['weights'] / MIB:.1f} MiB of weights besides the mapped file,"
        f" {sizes['per_slot'] / MIB:.2f} MiB a slot,"
        f" {sizes['per_1000_tokens'] / MIB:.2f} MiB per 1,000 tokens"
    )
    yield f"slots that fit into {sizes['free'] / MIB:.0f} MiB: {slots}"
    yield from (f"not supported: {line}" for line in report.not_supported)
    verdict = "everything is right" if report.is_sound else "FAULTS FOUND, see above"
    yield f"{verdict} ({report.seconds:.0f} s)"


if __name__ == "__main__":
    sys.exit(main())
