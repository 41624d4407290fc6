"""The recorded cases, what each needs of a server, and which answers differ on purpose."""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data"
HTTP = DATA / "http"
MODELS = DATA / "models"
KEY_FILE = "# comment\nfile-key-1\nfile-key-2\n"
ANY_MODEL = "qwen35-tiny-BF16"


@dataclass(frozen=True)
class Case:
    """One recorded case."""

    topic: str
    name: str
    record: Any = field(repr=False, hash=False, compare=False)

    @property
    def id(self) -> str:
        return f"{self.topic}-{self.name}"

    @property
    def model(self) -> Path:
        name = self.record["model"]
        return MODELS / f"{ANY_MODEL if name == 'any' else name}.gguf"

    @property
    def fresh(self) -> bool:
        return bool(self.record["fresh_server"])

    @property
    def group(self) -> tuple[str, ...]:
        """Cases of one group can be answered by one server."""
        environment = [f"{k}={v}" for k, v in (self.record.get("env") or {}).items()]
        flags = (str(self.model), *self.record["server_flags"], *environment)
        return (*flags, self.id) if self.fresh else flags

    def flags(self, folder: Path) -> list[str]:
        """The recorded flags with paths below ``folder``; writes the files they name."""
        slots, keys = folder / "slots", folder / "keys"
        slots.mkdir(exist_ok=True)
        keys.write_text(KEY_FILE)
        for name, text in (self.record.get("slot_files") or {}).items():
            (slots / name).write_text(text)
        paths = {"{MODEL}": self.model, "{SLOT_DIR}": slots, "{KEY_FILE}": keys}
        return [str(paths.get(flag, flag)) for flag in self.record["server_flags"]]


def cases(*topics: str) -> list[Case]:
    """All cases of the topics, those that share a server next to each other."""
    found = [
        Case(topic, record["name"], record)
        for topic in topics
        for record in json.loads((HTTP / f"{topic}.json").read_text())["cases"]
    ]
    return sorted(found, key=lambda case: case.group)


@cache
def _deviations() -> dict[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for entry in json.loads((HTTP / "deviations.json").read_text()):
        found.setdefault((entry["topic"], entry["case"]), []).append(entry)
    return found


def masked_paths(case: Case) -> list[str]:
    """Paths in which this server is known to answer otherwise."""
    entries = _deviations().get((case.topic, case.name), [])
    return [path for entry in entries for path in entry["paths"]]


def known_cases() -> set[tuple[str, str]]:
    """Every (topic, case) that ``deviations.json`` names."""
    return set(_deviations())
