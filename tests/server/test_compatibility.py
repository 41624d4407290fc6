"""``docs/compatibility.md`` speaks of every flag, every route and every answer that differs."""

import json
from pathlib import Path

import pytest
from gguf_hybrid.server.app import all_routes
from gguf_hybrid.server.flags import Flag, Status
from gguf_hybrid.server.settings import FLAGS

from .goldens import HTTP

PAGE = (Path(__file__).parents[2] / "docs/compatibility.md").read_text()
WORDS = {Status.IGNORED: "ignored", Status.REFUSED: "refused", Status.REMOVED: "refused"}


def row_of(flag: Flag) -> str:
    head = "| " + " ".join(f"`{name}`" for name in (*flag.names, *flag.off)) + " |"
    (row,) = [line for line in PAGE.splitlines() if line.startswith(head)]
    return row


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.names[-1])
def test_every_flag_has_a_row_with_its_status(flag: Flag) -> None:
    row = row_of(flag)
    assert flag.env is None or f"`{flag.env}`" in row
    assert WORDS.get(flag.status, "") in row
    assert flag.note in row


def test_every_route_is_listed() -> None:
    paths = {path for route in all_routes() for path in route.paths}
    missing = {path for path in paths if f"`{path.split('?')[0]}" not in PAGE}
    assert missing == set()


def test_every_answer_that_differs_is_listed() -> None:
    for entry in json.loads((HTTP / "deviations.json").read_text()):
        assert f"| {entry['topic']} | {entry['case']} | {entry['kind']} |" in PAGE
