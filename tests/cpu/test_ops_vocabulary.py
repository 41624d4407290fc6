"""Reductions over the vocabulary: argmax, log-sum-exp and top-k."""

import numpy as np
import pytest

from gguf_hybrid.cpu.bindings import argmax, log_sum_exp, top_k
from gguf_hybrid.cpu.library import Pool

RNG = np.random.default_rng(9)
SIZES = [1, 5, 16, 33, 4096, 20001]


def logits(n: int, n_rows: int = 3) -> np.ndarray:
    return (RNG.normal(size=(n_rows, n)) * 5).astype(np.float32)


@pytest.mark.parametrize("n", SIZES)
def test_argmax_is_the_first_of_the_largest(pool: Pool, n: int) -> None:
    x = np.round(logits(n))
    assert np.array_equal(argmax(pool, x), x.argmax(-1))


@pytest.mark.parametrize("n", SIZES)
def test_log_sum_exp(pool: Pool, n: int) -> None:
    x = logits(n) + np.float32(300)
    expected = np.log(np.exp(x.astype(np.float64) - 300).sum(-1)) + 300
    assert np.abs(log_sum_exp(pool, x) - expected).max() < 1e-5


@pytest.mark.parametrize("k", [1, 2, 20, 100, 4096])
def test_top_k_is_a_stable_descending_sort(pool: Pool, k: int) -> None:
    x = np.round(logits(4096), 1)
    ids, values = top_k(pool, x, k)
    expected = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    assert np.array_equal(ids, expected)
    assert np.array_equal(values, np.take_along_axis(x, expected, -1))


def test_infinite_logits_lose(pool: Pool) -> None:
    x = np.full((1, 50), -np.inf, np.float32)
    x[0, [7, 40]] = 1.0, 2.0
    ids, values = top_k(pool, x, 2)
    assert ids.tolist() == [[40, 7]] and values.tolist() == [[2.0, 1.0]]
    assert np.isclose(log_sum_exp(pool, x)[0], np.log(np.exp(1.0) + np.exp(2.0)))
