"""``docs/known-failures.md``: every report has its row, and every test a row names exists."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "known-failures.md").read_text()
ROWS = re.findall(r"^\| (\d+) \|(.*)\|$", PAGE, re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
N_REPORTS = 94


def test_every_report_has_one_row_in_order() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, N_REPORTS + 1))


def test_every_row_names_tests_or_says_why_not() -> None:
    for number, row in ROWS:
        assert NAMED.search(row) or "cannot apply:" in row, number


def test_every_named_test_exists() -> None:
    for path, name in NAMED.findall(PAGE):
        source = (TESTS / path).read_text()
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{path}::{name}"
