"""Each stateless sampler against its definition written out over plain float64 lists."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_hybrid.sampling import filters
from gguf_hybrid.sampling.candidates import Candidates, largest_positions


def of_logits(logits):
    logits = np.asarray(logits, dtype=np.float32)
    return Candidates(np.arange(len(logits)), logits, is_full=True)


def of_probs(probs):
    return of_logits(np.log(np.asarray(probs)))


def kept(candidates):
    """Ids still possible, by falling logit."""
    ordered = candidates.sorted()
    return [int(i) for i, x in zip(ordered.ids, ordered.logits, strict=True) if x > -np.inf]


def softmax(logits):
    peak = max(logits)
    weights = [math.exp(x - peak) for x in logits]
    return [w / sum(weights) for w in weights]


def ranked(values):
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


# Eighths are exact in float32, and repeats among them exercise ties.
LOGITS = st.lists(st.integers(-80, 80).map(lambda x: x / 8), min_size=1, max_size=40)
FRACTION = st.integers(0, 100).map(lambda x: x / 100 + 0.003)


@given(LOGITS, st.integers(1, 50))
def test_top_k_is_a_stable_sort_cut(logits, k):
    result = filters.top_k(of_logits(logits), k)
    assert list(result.ids) == ranked(logits)[:k]
    assert result.is_sorted


@given(LOGITS, st.data())
def test_largest_positions_break_ties_by_position(logits, data):
    k = data.draw(st.integers(1, len(logits)))
    assert list(largest_positions(np.float32(logits), k)) == ranked(logits)[:k]


@pytest.mark.parametrize("k", [2, 7, 40, 300, 2500])
@pytest.mark.parametrize("levels", [3, 50, 10**6])
def test_largest_positions_of_a_vocabulary(k, levels):
    logits = np.random.default_rng(k).integers(0, levels, 10_007).astype(np.float32)
    assert list(largest_positions(logits, k)) == ranked(logits.tolist())[:k]


@given(LOGITS, FRACTION, st.integers(0, 10))
def test_top_p_keeps_the_crossing_token(logits, p, min_keep):
    probs, order = softmax(logits), ranked(logits)
    expected, total = [], 0.0
    for i in order:
        expected.append(i)
        total += probs[i]
        if total >= p - 1e-9 and len(expected) >= min_keep:
            break
    result = filters.top_p(of_logits(logits), p, min_keep)
    assert list(result.sorted().ids)[: len(expected)] == expected[: len(result)]
    assert abs(len(result) - len(expected)) <= near_cuts(probs, order, p)


def near_cuts(probs, order, p):
    """How many tokens rounding may add or drop: running sums too close to p to tell."""
    sums = np.cumsum([probs[i] for i in order])
    return int(np.count_nonzero(np.abs(sums - p) < 1e-5))


def test_top_p_looks_past_its_first_slice():
    flat = of_logits(np.zeros(6000))
    assert len(filters.top_p(flat, 0.9, 0)) == pytest.approx(5400, abs=2)


@given(LOGITS, FRACTION, st.integers(0, 10))
def test_min_p_compares_with_the_most_likely(logits, p, min_keep):
    likely = [i for i, x in enumerate(logits) if x - max(logits) >= math.log(min(p, 1.0))]
    order = ranked(logits)
    expected = order[: max(len(likely), min(min_keep, len(logits)), 1)]
    result = filters.min_p(of_logits(logits), min(p, 1.0), min_keep)
    assert sorted(result.ids) == sorted(expected)


@given(LOGITS, FRACTION, st.integers(0, 10))
def test_typical_takes_the_least_unexpected_surprise(logits, p, min_keep):
    probs = softmax(logits)
    entropy = -sum(q * math.log(q) for q in probs)
    distance = {i: abs(-math.log(probs[i]) - entropy) for i in range(len(probs))}
    result = filters.typical(of_logits(logits), p, min_keep)
    chosen = set(result.ids.tolist())
    outside = [distance[i] for i in distance if i not in chosen]
    # The chosen are the nearest ones, they pass p, and one fewer would not have.
    if p < 1:
        assert max(distance[i] for i in chosen) <= min(outside, default=math.inf) + 1e-5
        assert len(chosen) == len(probs) or sum(probs[i] for i in chosen) > p - 1e-5
        if len(chosen) > max(1, min_keep):
            assert sum(probs[i] for i in result.ids[:-1]) <= p + 1e-5
    else:
        assert len(chosen) == len(probs)


@given(LOGITS, st.integers(1, 30).map(lambda x: x / 10))
def test_top_n_sigma_masks_below_the_band(logits, n):
    result = filters.top_n_sigma(of_logits([*logits, -np.inf]), n)
    bound = max(logits) - n * float(np.std(np.float64(logits)))
    for x, new in zip(logits, result.logits, strict=False):
        if abs(x - bound) > 1e-5:
            assert new == (x if x > bound else -np.inf)


@given(LOGITS, st.floats(0.01, 50))
def test_temperature_divides(logits, t):
    result = filters.temperature(of_logits(logits), t)
    np.testing.assert_allclose(result.logits, np.float64(logits) / t, rtol=1e-6)


def test_zero_temperature_keeps_the_first_maximum():
    result = filters.temperature(of_logits([1.0, 3.0, 3.0, -np.inf]), 0.0)
    assert kept(result) == [1]
    assert result.probs().tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("t", [1e-38, 3.4e38])
def test_extreme_temperatures_stay_finite(t):
    probs = filters.temperature(of_logits([-20.0, 5.0, 30.0, -np.inf]), t).probs()
    assert probs.sum() == pytest.approx(1.0)
    assert probs.argmax() == (2 if t < 1 else 0)
    assert probs[3] == 0.0


@given(LOGITS, st.floats(0.1, 2), st.floats(0.1, 3), st.floats(0.2, 3))
def test_dynamic_temperature_follows_entropy(logits, t, spread, exponent):
    result = filters.dynamic_temperature(of_logits(logits), t, spread, exponent)
    if len(logits) == 1:
        assert list(result.logits) == logits
        return
    probs = softmax(logits)
    evenness = -sum(q * math.log(q) for q in probs) / math.log(len(probs))
    low, high = max(0.0, t - spread), t + spread
    dynamic = low + (high - low) * evenness**exponent
    if dynamic > 1e-3:
        expected = [x / dynamic for x in sorted(logits, reverse=True)]
        np.testing.assert_allclose(result.sorted().logits, expected, rtol=1e-3, atol=1e-3)


def test_dynamic_temperature_with_negative_exponent_is_finite():
    certain = of_logits([0.0, -np.inf])
    assert filters.dynamic_temperature(certain, 1.0, 0.5, -1.0).probs().tolist() == [1.0, 0.0]


# Cases with known outcomes: probabilities 0.1 … 0.4 by id.
FOUR = (0.1, 0.2, 0.3, 0.4)


@pytest.mark.parametrize(("p", "ids"), [(0.0, [3]), (0.65, [3, 2]), (0.75, [3, 2, 1]), (1.0, None)])
def test_top_p_cases(p, ids):
    assert kept(filters.top_p(of_probs(FOUR), p, 0)) == (ids or [3, 2, 1, 0])


@pytest.mark.parametrize(
    ("p", "ids"), [(0.24, [3, 2, 1, 0]), (0.26, [3, 2, 1]), (0.74, [3, 2]), (0.76, [3]), (1.0, [3])]
)
def test_min_p_cases(p, ids):
    assert kept(filters.min_p(of_probs(FOUR), p, 0)) == ids


@pytest.mark.parametrize(("n", "ids"), [(1.0, [3, 2]), (0.0, [3, 2, 1, 0]), (3.0, [3, 2, 1, 0])])
def test_top_n_sigma_cases(n, ids):
    assert kept(filters.top_n_sigma(of_probs(FOUR), n)) == ids


@pytest.mark.parametrize(
    ("probs", "ids"), [((0.97, 0.01, 0.01, 0.01), [0]), ((0.4, 0.2, 0.2, 0.2), [1, 2, 3])]
)
def test_typical_cases(probs, ids):
    assert kept(filters.typical(of_probs(probs), 0.5, 0)) == ids


@pytest.mark.parametrize(
    ("threshold", "ids"), [(0.09, [0]), (0.19, [1, 0]), (0.29, [2, 1, 0]), (0.39, [3, 2, 1, 0])]
)
def test_xtc_keeps_the_least_likely_top_choice(threshold, ids):
    assert kept(filters.exclude_top_choices(of_probs(FOUR), threshold, 0)) == ids


def test_xtc_respects_min_keep():
    assert len(filters.exclude_top_choices(of_probs(FOUR), 0.09, 2)) == 4


@settings(max_examples=50)
@given(LOGITS, FRACTION)
def test_no_filter_writes_into_its_input(logits, p):
    candidates = of_logits(logits)
    candidates.logits.flags.writeable = False
    candidates.ids.flags.writeable = False
    for run in (
        lambda c: filters.top_k(c, 3),
        lambda c: filters.top_p(c, p, 0),
        lambda c: filters.min_p(c, p, 0),
        lambda c: filters.typical(c, p, 0),
        lambda c: filters.top_n_sigma(c, p),
        lambda c: filters.temperature(c, 0.0),
        lambda c: filters.dynamic_temperature(c, 1.0, 0.5, 1.0),
        lambda c: filters.exclude_top_choices(c, p, 0),
    ):
        assert len(run(candidates)) >= 1
