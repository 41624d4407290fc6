"""``python -m fuzz.files``: many damaged files, one forked process each; 1 if any does harm.

Prints a JSON object: how many mutants of each kind were answered, refused or failed in their
request, and the faults. Everything follows from ``--seed``.
"""

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import mutations, victims
from .forked import Case, Outcome, Victim, run

DATA = Path(__file__).parent.parent / "data"
CHECKPOINT = DATA / "convert" / "qwen35-tiny"
KINDS = ("gguf", "convert", "slot")


@dataclass(frozen=True)
class Fuzzer:
    """Mutants number 0 … n - 1 of one kind, in ``folder``."""

    folder: Path
    seed: int
    n: int

    def gguf(self) -> Iterator[Case]:
        """Small files more often than large ones."""
        paths = sorted([victims.demo_path(), *(DATA / "models").glob("*.gguf")])
        chances = [1 / path.stat().st_size for path in paths]
        mutators: dict[Path, mutations.GGUFMutator] = {}
        for i in range(self.n):
            rng = self._rng(i)
            (path,) = rng.choices(paths, chances)
            if path not in mutators:
                mutators[path] = mutations.GGUFMutator(path.read_bytes())
            data, name = mutators[path].mutate(rng)
            yield self._written(i, data, f"{path.stem}: {name}")

    def slot(self) -> Iterator[Case]:
        sound = self.folder / "sound.slot"
        size = victims.demo_path().stat().st_size
        (made,) = run([Case("sound", sound, size)], victims.save_slot)
        assert not made.fault, made.fault
        raw = sound.read_bytes()
        for i in range(self.n):
            data, name = mutations.mutate_slot_file(raw, self._rng(i))
            case = self._written(i, data, name)
            yield Case(case.name, case.path, case.nbytes + size)

    def convert(self) -> Iterator[Case]:
        """One file of a checkpoint is damaged, the others are links."""
        names = ["config.json", "tokenizer.json", "tokenizer_config.json"]
        names += ["model.safetensors.index.json", *sorted(p.name for p in CHECKPOINT.glob("*rs"))]
        size = sum(path.stat().st_size for path in CHECKPOINT.iterdir())
        for i in range(self.n):
            rng = self._rng(i)
            name = rng.choice(names)
            mutate = (
                mutations.mutate_json if name.endswith("json") else mutations.mutate_safetensors
            )
            data, what = mutate((CHECKPOINT / name).read_bytes(), rng)
            folder = self.folder / str(i)
            folder.mkdir()
            for path in CHECKPOINT.iterdir():
                (folder / path.name).symlink_to(path)
            (folder / name).unlink()
            (folder / name).write_bytes(data)
            yield Case(f"{i} {name}: {what}", folder, size)

    def _rng(self, i: int) -> random.Random:
        return random.Random(f"{self.seed} {i}")

    def _written(self, i: int, data: bytes, name: str) -> Case:
        path = self.folder / str(i)
        path.write_bytes(data)
        return Case(f"{i} {name}", path, len(data))


VICTIMS: dict[str, Victim] = {
    "gguf": victims.load_and_answer,
    "convert": victims.convert_checkpoint,
    "slot": victims.restore,
}


def fuzz(kind: str, n: int, seed: int) -> dict[str, Any]:
    """Run ``n`` mutants; counts of how they ended, and the faults."""
    counts: Counter[str] = Counter()
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        cases = getattr(Fuzzer(Path(folder), seed, n), kind)()
        for outcome in run(cases, VICTIMS[kind]):
            counts[_ending(outcome)] += 1
            if outcome.fault:
                faults.append(f"{outcome.case.name}: {outcome.fault}")
            _delete(outcome.case.path)
    return {"kind": kind, "n": n, "seed": seed, "ended": dict(counts), "faults": faults}


def _ending(outcome: Outcome) -> str:
    return "fault" if outcome.fault else outcome.said.split(":")[0]


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.files")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("-n", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    result = fuzz(args.kind, args.n, args.seed)
    print(json.dumps(result, indent=1))
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
