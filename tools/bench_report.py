"""How benchmarks tell what they measured: a table for people, and one JSON line, the last, for
programs."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Cell = str | int | float | None


def table(rows: Sequence[Mapping[str, Cell]]) -> str:
    """Rows of the same keys as aligned columns; None (not measured) is shown as a dash."""
    if not rows:
        return ""
    lines = [list(rows[0]), *([_shown(cell) for cell in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def print_rows(rows: Sequence[Mapping[str, Cell]]) -> None:
    print(table(rows), flush=True)


def print_json(result: Mapping[str, Any]) -> None:
    """The last line of every benchmark."""
    print(json.dumps(result, ensure_ascii=False), flush=True)


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """``ours / theirs``; None where either is missing."""
    return ours / theirs if ours is not None and theirs else None


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` (0 ... 1) of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
