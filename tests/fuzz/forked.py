"""Runs a function on one mutant per forked process, and says how each process ended.

The parent has imported everything and started no thread, so a fork takes milliseconds and a crash,
an endless loop or a flood of memory ends one mutant only. Time is processor time, so that a busy
machine makes no findings.
"""

import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
MAX_CPU_SECONDS = 5
MAX_WALL_SECONDS = 120
EXTRA_MEMORY = 50 * MIB
MAX_LINE = 2000


@dataclass(frozen=True, slots=True)
class Case:
    """A mutant and how it came to be; ``nbytes`` of all files that are read with it."""

    name: str
    path: Path
    nbytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """``fault`` is empty if the mutant was answered or refused as it should be."""

    case: Case
    said: str
    fault: str


Victim = Callable[[Path], str]
"""Takes a file; returns a word ("answered") or the one line of a refusal."""


def run(cases: Iterable[Case], victim: Victim, n_workers: int = 2) -> Iterator[Outcome]:
    """Outcomes as they come; ``case.path`` may be deleted when its outcome is there."""
    running: dict[int, tuple[Case, Path, int]] = {}
    for case in cases:
        said = case.path.with_name(case.path.name + ".said")
        running[_fork(case, victim, said)] = (case, said, _resident())
        if len(running) == n_workers:
            yield _next_outcome(running)
    while running:
        yield _next_outcome(running)


def _fork(case: Case, victim: Victim, said: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(MAX_WALL_SECONDS)
        said.write_text(victim(case.path), errors="backslashreplace")
        code = 0
    except BaseException:
        said.write_text(traceback.format_exc(), errors="backslashreplace")
    finally:
        os._exit(code)


def _next_outcome(running: dict[int, tuple[Case, Path, int]]) -> Outcome:
    pid, status, usage = os.wait4(-1, 0)
    case, said_path, idle = running.pop(pid)
    said = said_path.read_text() if said_path.exists() else ""
    said_path.unlink(missing_ok=True)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Outcome(case, said, _fault(case, status, said, peak - idle))


def _fault(case: Case, status: int, said: str, more_memory: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    if os.WEXITSTATUS(status):
        return f"traceback: {said.strip()}"
    if not said or "\n" in said or len(said) > MAX_LINE:
        return f"not one line: {said[:MAX_LINE]!r}"
    if more_memory > 2 * case.nbytes + EXTRA_MEMORY:
        return f"{more_memory / MIB:.0f} MiB more than idle for a file of {case.nbytes / MIB:.1f}"
    return ""


def _resident() -> int:
    """Bytes resident now; the peak where the system does not tell."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
