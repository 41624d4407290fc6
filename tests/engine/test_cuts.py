"""Rows of a prompt: cut where the request says, whatever the budget."""

import numpy as np
import pytest

from gguf_hybrid.engine.cuts import first_piece, must_cut, row_end
from gguf_hybrid.step import CHUNK


def test_long_prompt_has_places_that_follow_its_end() -> None:
    assert must_cut(3000, (), 8192) == (896, 2432, 2999, 3000)
    assert all(cut % CHUNK == 0 for cut in must_cut(70_001, (), 8192)[:-2])


def walk(start: int, cuts: tuple[int, ...], budgets: list[int]) -> list[int]:
    ends = []
    while start < cuts[-1]:
        budget = budgets[len(ends) % len(budgets)]
        end = row_end(start, cuts, budget)
        start = end if end > start else start + first_piece(start, cuts)
        ends.append(start)
    return ends


def test_last_token_is_a_row_of_its_own() -> None:
    assert must_cut(1, ()) == (1,)
    assert must_cut(2, ()) == (1, 2)
    assert must_cut(10, (0, 4, 10, 99)) == (4, 9, 10)
    assert must_cut(300, (70,), 128) == (70, 128, 256, 299, 300)


@pytest.mark.parametrize("seed", range(30))
def test_rows_end_at_the_grid_or_at_the_requests_own_cuts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 900))
    cuts = must_cut(n, rng.integers(1, 900, 3).tolist())
    start = int(rng.integers(0, n))
    ends = walk(start, cuts, rng.integers(0, 700, 5).tolist())
    assert ends[-1] == n and ends == sorted(set(ends))
    assert all(end in cuts or end % CHUNK == 0 for end in ends)
    assert {cut for cut in cuts if cut > start} <= set(ends)


def test_budget_is_a_limit_once_the_first_piece_fits() -> None:
    cuts = must_cut(1000, ())
    assert row_end(70, cuts, 57) == 70 and first_piece(70, cuts) == 58
    assert row_end(70, cuts, 58) == 128
    assert row_end(70, cuts, 200) == 256
    assert row_end(70, cuts, 5000) == 999
