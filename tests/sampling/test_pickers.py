"""The stages that choose, followed step by step with their definitions in plain float64."""

import math

import numpy as np
import pytest

from gguf_hybrid.sampling.candidates import Candidates
from gguf_hybrid.sampling.draws import Draws
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.sampling.pickers import AdaptiveP, Dist, Mirostat

N_VOCAB = 300


def candidates_at(step):
    logits = np.random.default_rng(step).normal(scale=2.5, size=N_VOCAB).astype(np.float32)
    return Candidates(np.arange(N_VOCAB), logits, is_full=True)


def softmax(logits):
    weights = np.exp(np.float64(logits) - np.max(np.float64(logits)))
    return weights / weights.sum()


def surprise_cut(probs, mu):
    """Mirostat 2: how many of the falling ``probs`` are no more surprising than μ."""
    return sum(-math.log2(p) <= mu for p in probs)


def zipf_cut(probs, mu):
    """Mirostat 1: top-k from the exponent fitted to the 100 likeliest."""
    pairs = [(math.log((i + 2) / (i + 1)), math.log(probs[i] / probs[i + 1])) for i in range(99)]
    s = sum(t * b for t, b in pairs) / sum(t * t for t, _ in pairs)
    epsilon = s - 1
    return int(((epsilon * 2**mu) / (1 - N_VOCAB**-epsilon)) ** (1 / s))


@pytest.mark.parametrize(("version", "cut"), [(1, zipf_cut), (2, surprise_cut)])
def test_mirostat_follows_its_definition(version, cut):
    params = SamplingParams(mirostat=version, mirostat_tau=3.0, mirostat_eta=0.3)
    picker = Mirostat(params, N_VOCAB, Draws(1))
    mu = 2 * 3.0
    for step in range(50):
        candidates = candidates_at(step)
        order = np.argsort(-candidates.logits, kind="stable")
        keep = max(1, min(cut(softmax(candidates.logits)[order], mu), N_VOCAB))
        drawn, position = picker.pick(candidates)
        assert drawn.ids.tolist() == order[:keep].tolist()
        mu -= 0.3 * (-math.log2(softmax(drawn.logits)[position]) - 3.0)


def test_adaptive_p_follows_its_definition():
    target, decay = 0.3, 0.8
    params = SamplingParams(adaptive_target=target, adaptive_decay=decay)
    picker = AdaptiveP(params, Draws(1))
    total, weight = target / (1 - decay), 1 / (1 - decay)
    for step in range(50):
        candidates = candidates_at(step)
        probs = softmax(candidates.logits)
        aim = min(max(2 * target - total / weight, 0.0), 1.0)
        distance = np.abs(probs - aim) / 0.3
        expected = softmax(5.0 - 10.0 * distance**2 / (1 + distance))
        drawn, position = picker.pick(candidates)
        np.testing.assert_allclose(softmax(drawn.logits), expected, rtol=1e-4)
        picker.accept(int(drawn.ids[position]))
        total, weight = probs[position] + decay * total, 1 + decay * weight


def test_adaptive_p_learns_only_from_its_own_choice():
    def second(accepted):
        picker = AdaptiveP(SamplingParams(adaptive_target=0.3), Draws(1))
        drawn, position = picker.pick(candidates_at(0))
        picker.accept(int(drawn.ids[position]) if accepted is None else accepted)
        return picker.pick(candidates_at(1))[0].logits

    other_token, none_yet = N_VOCAB, AdaptiveP(SamplingParams(adaptive_target=0.3), Draws(1))
    np.testing.assert_array_equal(second(other_token), none_yet.pick(candidates_at(1))[0].logits)
    assert not np.array_equal(second(None), second(other_token))


def test_adaptive_p_leaves_masked_tokens_out():
    logits = np.float32([1.0, -np.inf, 0.5])
    picker = AdaptiveP(SamplingParams(adaptive_target=0.0), Draws(1))
    drawn, _ = picker.pick(Candidates(np.arange(3), logits))
    assert softmax(drawn.logits)[1] == 0.0


def test_dist_draws_by_probability():
    candidates = Candidates(np.arange(4), np.log(np.float32([0.1, 0.2, 0.3, 0.4])))
    picker = Dist(Draws(5))
    counts = np.bincount([picker.pick(candidates)[1] for _ in range(20_000)], minlength=4)
    np.testing.assert_allclose(counts / 20_000, [0.1, 0.2, 0.3, 0.4], atol=0.015)


def test_draws_never_choose_what_has_no_weight():
    logits = np.full(50, -np.inf, dtype=np.float32)
    logits[[7, 31]] = 0.0
    draws = Draws(2)
    chosen = {draws.choose(Candidates(np.arange(50), logits)) for _ in range(200)}
    assert chosen == {7, 31}


def test_one_draw_for_each_token_whatever_the_choice():
    """So that a seed's later tokens do not depend on how many candidates earlier ones had."""
    one, many = Draws(3), Draws(3)
    one.choose(Candidates(np.arange(1), np.zeros(1, dtype=np.float32)))
    many.choose(candidates_at(0))
    assert one.uniform() == many.uniform()
