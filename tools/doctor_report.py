"""What ``doctor`` found, as values: one finding a check, for people and as JSON for scripts."""

import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "fault", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check; ``detail`` says what was compared and with which result."""

    check: str
    status: Status
    detail: str

    def line(self) -> str:
        return f"  {self.status:8}{self.check}: {self.detail}"


def judged(check: str, is_right: bool, detail: str) -> Finding:
    """A finding that is ok or a fault."""
    return Finding(check, "ok" if is_right else "fault", detail)


@dataclass(frozen=True, slots=True)
class Report:
    """All that ``doctor`` says about one file. ``figures`` are plain JSON values."""

    file: str
    backend: str
    findings: tuple[Finding, ...]
    figures: dict[str, Any]
    not_supported: tuple[str, ...]
    seconds: float

    @property
    def is_sound(self) -> bool:
        return all(finding.status != "fault" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.is_sound, **asdict(self)}


class Budget:
    """Seconds that the checks may take; they sample when their share of it is used up."""

    def __init__(self, seconds: float) -> None:
        self.total = seconds
        self._began = time.monotonic()

    @property
    def used(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        return self.total - self.used

    def is_past(self, share: float) -> bool:
        """Whether more than ``share`` (0 to 1) of the whole time is gone."""
        return self.used > share * self.total
