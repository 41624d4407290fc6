"""A request's sampler as a whole: repeatability, order, short cuts, probabilities, failures."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gguf_hybrid.errors import RequestError, StepError
from gguf_hybrid.sampling.candidates import FLOAT32_MAX
from gguf_hybrid.sampling.chain import Sampler
from gguf_hybrid.sampling.draws import Draws
from gguf_hybrid.sampling.params import SamplingParams
from gguf_hybrid.sampling.vocab import SamplingVocab

N_VOCAB = 512
EOG = (500, 501)
PIECES = [f"t{i}".encode() for i in range(N_VOCAB)]
VOCAB = SamplingVocab(PIECES, EOG, tokenize=lambda text: [0], eot_id=501)

EVERYTHING = SamplingParams(
    seed=7,
    temperature=1.1,
    dynatemp_range=0.4,
    top_k=200,
    top_p=0.98,
    min_p=0.001,
    top_n_sigma=4.0,
    typical_p=0.97,
    xtc_probability=0.5,
    repeat_penalty=1.2,
    frequency_penalty=0.2,
    presence_penalty=0.1,
    dry_multiplier=0.8,
)


def random_logits(step, scale=3.0):
    return np.random.default_rng(step).normal(scale=scale, size=N_VOCAB).astype(np.float32)


def generate(params, n=40, constraint=None, prompt=(1, 2, 3, 1, 2)):
    sampler = Sampler(params, VOCAB, constraint)
    sampler.accept_prompt(prompt)
    output = []
    for step in range(n):
        output.append(sampler.sample(random_logits(step)).id)
        sampler.accept(output[-1])
    return output


class Allows:
    """A constraint with a fixed mask."""

    def __init__(self, *tokens):
        self.allowed = np.isin(np.arange(N_VOCAB), tokens)
        self.accepted = []

    def prepare_mask(self):
        pass

    def mask(self):
        return self.allowed

    def accept(self, token):
        self.accepted.append(token)


CHAINS = {
    "everything": EVERYTHING,
    "default": SamplingParams(seed=7),
    "mirostat": SamplingParams(seed=7, mirostat=1),
    "mirostat2": SamplingParams(seed=7, mirostat=2),
    "adaptive": SamplingParams(seed=7, adaptive_target=0.4, samplers=("top_k", "adaptive_p")),
    "infill": SamplingParams(seed=7, samplers=("top_k", "infill")),
    "none": SamplingParams(seed=7, samplers=()),
}


@pytest.mark.parametrize("params", CHAINS.values(), ids=CHAINS)
def test_same_seed_same_output(params):
    assert generate(params) == generate(params)


@pytest.mark.parametrize("name", ["everything", "default", "mirostat", "mirostat2", "adaptive"])
def test_other_seed_other_output(name):
    assert generate(CHAINS[name]) != generate(replace(CHAINS[name], seed=8))


def test_random_seeds_differ():
    params = SamplingParams(seed=-1, temperature=5.0)
    assert generate(params) != generate(params)


def test_neighbours_do_not_matter():
    """Two samplers used in turn give what each gives alone."""
    both = [Sampler(EVERYTHING, VOCAB), Sampler(replace(EVERYTHING, seed=3), VOCAB)]
    outputs = [[], []]
    for step in range(20):
        for sampler, output in zip(both, outputs, strict=True):
            output.append(sampler.sample(random_logits(step)).id)
            sampler.accept(output[-1])
    assert outputs[0] == generate(EVERYTHING, 20, prompt=())
    assert outputs[1] == generate(replace(EVERYTHING, seed=3), 20, prompt=())


@pytest.mark.parametrize("params", CHAINS.values(), ids=CHAINS)
def test_given_logits_are_not_written(params):
    logits = random_logits(0)
    logits.flags.writeable = False
    Sampler(replace(params, n_probs=3, logit_bias=((4, 1.0),)), VOCAB).sample(logits)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_k": 5, "top_p": 0.3},
        {"repeat_penalty": 1.3, "dry_multiplier": 1.0},
        {"samplers": ("top_k", "temperature", "penalties"), "presence_penalty": 9.0},
        {"top_n_sigma": 1.0, "min_p": 0.5},
    ],
)
def test_greedy_short_cut_equals_the_full_chain(changes):
    """A chain that XTC (never falling here) keeps from the short cut says the same."""
    short = SamplingParams(seed=1, temperature=0.0, **changes)
    full = replace(short, xtc_probability=1e-9, samplers=("xtc", *short.samplers))
    assert generate(short) == generate(full)


def test_greedy_takes_the_lowest_id_of_a_tie():
    logits = np.zeros(N_VOCAB, dtype=np.float32)
    logits[[100, 40, 300]] = 2.0
    assert Sampler(SamplingParams(temperature=0.0), VOCAB).sample(logits).id == 40
    assert Sampler(SamplingParams(top_k=1), VOCAB).sample(logits).id == 40


def test_order_of_the_list_is_the_order_of_the_chain():
    """A penalty before top-k changes who gets in, after it only who wins."""
    logits = np.full(N_VOCAB, -10.0, dtype=np.float32)
    logits[[1, 2, 3]] = (5.0, 4.0, 3.0)
    base = SamplingParams(presence_penalty=50.0, top_k=1, n_probs=1, post_sampling_probs=True)
    picks = {}
    for samplers in (("penalties", "top_k"), ("top_k", "penalties")):
        sampler = Sampler(replace(base, samplers=samplers), VOCAB)
        sampler.accept_prompt([1])
        picks[samplers[0]] = sampler.sample(logits).id
    assert picks == {"penalties": 2, "top_k": 1}


def test_unlisted_samplers_do_not_act():
    params = SamplingParams(temperature=0.0, presence_penalty=50.0, samplers=("temperature",))
    sampler = Sampler(params, VOCAB)
    sampler.accept_prompt([int(random_logits(0).argmax())])
    assert sampler.sample(random_logits(0)).id == random_logits(0).argmax()


def test_empty_chain_draws_from_the_model():
    logits = np.full(N_VOCAB, -np.inf, dtype=np.float32)
    logits[[3, 9]] = np.log([0.25, 0.75])
    sampler = Sampler(SamplingParams(seed=1, samplers=(), temperature=0.0), VOCAB)
    counts = Counter(sampler.sample(logits).id for _ in range(4000))
    assert set(counts) == {3, 9}
    assert counts[9] / 4000 == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_holds_its_surprise(version):
    params = SamplingParams(seed=3, mirostat=version, mirostat_tau=3.0, temperature=1.0)
    sampler = Sampler(params, VOCAB)
    surprises = []
    for step in range(600):
        sampled = sampler.sample(logits := random_logits(step, scale=2.0))
        probs = np.exp(np.float64(logits))
        surprises.append(-math.log2(probs[sampled.id] / probs.sum()))
    assert np.mean(surprises[200:]) < 5.0


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("peak", [-np.inf, 0.0, 1e30])
def test_mirostat_survives_degenerate_logits(version, peak):
    logits = np.full(N_VOCAB, peak, dtype=np.float32)
    logits[17] = 1e30
    sampler = Sampler(SamplingParams(seed=3, mirostat=version, mirostat_eta=1.0), VOCAB)
    for _ in range(20):
        sampler.accept(sampler.sample(logits).id)


def test_mirostat_ignores_the_list():
    params = SamplingParams(seed=3, mirostat=2, mirostat_tau=9.0)
    assert generate(params) == generate(replace(params, top_k=1, presence_penalty=9.0))


def test_adaptive_p_approaches_its_target():
    def mean_probability(target):
        params = SamplingParams(
            seed=5,
            adaptive_target=target,
            samplers=("adaptive_p",),
            temperature=1.0,
            n_probs=1,
        )
        sampler, chosen = Sampler(params, VOCAB), []
        for step in range(400):
            sampled = sampler.sample(random_logits(step, scale=4.0))
            sampler.accept(sampled.id)
            chosen.append(math.exp(sampled.probs.value))
        return np.mean(chosen)

    assert mean_probability(0.9) > mean_probability(0.3) > mean_probability(0.05)


def test_adaptive_p_below_zero_is_plain():
    plain = SamplingParams(seed=5, samplers=("temperature",))
    adaptive = replace(plain, samplers=("temperature", "adaptive_p"), adaptive_target=-1.0)
    assert generate(plain) == generate(adaptive)


def test_infill_prefers_to_end():
    logits = np.full(N_VOCAB, -20.0, dtype=np.float32)
    logits[[5, 500]] = (1.0, 0.5)
    params = SamplingParams(seed=1, top_k=10, samplers=("top_k", "infill"))
    assert Sampler(params, VOCAB).sample(logits).id == 500


def test_infill_merges_prefixes_and_falls_back_to_the_end_of_turn():
    logits = np.full(N_VOCAB, -30.0, dtype=np.float32)
    logits[[1, 10, 100, 7]] = (2.0, 2.1, 2.2, 2.3)  # t1 begins t10 and t100
    params = SamplingParams(seed=1, top_k=6, samplers=("top_k", "infill"))
    drawn = Sampler(params, VOCAB)
    assert {drawn.sample(logits).id for _ in range(60)} <= {1, 10, 100}
    flat = np.full(N_VOCAB, -30.0, dtype=np.float32)
    flat[[20, 31, 42, 53, 64, 75]] = 1.0  # none begins another, none reaches 0.2
    assert Sampler(params, VOCAB).sample(flat).id == 501


def test_ignore_eos_bans_every_end_token():
    logits = random_logits(0)
    logits[list(EOG)] = 50.0
    sampled = Sampler(SamplingParams(temperature=0.0, ignore_eos=True), VOCAB).sample(logits)
    assert sampled.id == random_logits(0).argmax()


def test_mask_comes_before_everything():
    params = replace(EVERYTHING, top_k=1)
    constraint = Allows(11, 12, 13)
    assert set(generate(params, constraint=constraint)) <= {11, 12, 13}
    assert len(constraint.accepted) == 40


def test_grammar_end_wins_over_ignore_eos():
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    assert Sampler(params, VOCAB, Allows(500)).sample(random_logits(0)).id == 500


def test_model_probs_are_the_raw_softmax():
    logits = random_logits(0)
    logits[9] = -np.inf
    params = replace(EVERYTHING, n_probs=5, logit_bias=((9, 2.0), (3, 4.0)))
    probs = Sampler(params, VOCAB).sample(logits).probs
    exact = np.float64(logits) - np.log(np.exp(np.float64(logits)).sum())
    assert [i for i, _ in probs.top] == np.argsort(-exact, kind="stable")[:5].tolist()
    assert [x for _, x in probs.top] == pytest.approx(sorted(exact, reverse=True)[:5], abs=1e-5)


def test_impossible_token_has_the_lowest_float32_as_logprob():
    logits = np.full(N_VOCAB, -np.inf, dtype=np.float32)
    logits[1] = 0.0
    probs = Sampler(SamplingParams(n_probs=3), VOCAB).sample(logits).probs
    assert probs.top == ((1, 0.0), (0, -FLOAT32_MAX), (2, -FLOAT32_MAX))


def test_drawn_probs_leave_out_zeros():
    params = SamplingParams(temperature=0.0, n_probs=10, post_sampling_probs=True)
    probs = Sampler(params, VOCAB).sample(random_logits(0)).probs
    best = int(random_logits(0).argmax())
    assert (probs.value, probs.top) == (1.0, ((best, 1.0),))


def test_drawn_probs_are_those_of_the_chain():
    params = SamplingParams(
        seed=2, temperature=1.0, top_k=3, top_p=1.0, min_p=0.0, n_probs=10, post_sampling_probs=True
    )
    probs = Sampler(params, VOCAB).sample(random_logits(0)).probs
    top = np.sort(np.exp(np.float64(random_logits(0))))[::-1][:3]
    assert [x for _, x in probs.top] == pytest.approx(top / top.sum(), rel=1e-5)
    assert probs.value in [x for _, x in probs.top]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_logit_that_is_not_finite_ends_the_request(value):
    logits = random_logits(0)
    logits[77] = value
    with pytest.raises(StepError, match="not finite"):
        Sampler(SamplingParams(), VOCAB).sample(logits)


def test_nothing_left_to_choose():
    with pytest.raises(StepError, match="not finite"):
        Sampler(SamplingParams(), VOCAB).sample(np.full(N_VOCAB, -np.inf, dtype=np.float32))
    with pytest.raises(StepError, match="grammar allows none"):
        Sampler(SamplingParams(), VOCAB, Allows()).sample(random_logits(0))
    banned = tuple((i, -math.inf) for i in range(N_VOCAB))
    with pytest.raises(StepError, match="bans every token"):
        Sampler(SamplingParams(logit_bias=banned), VOCAB).sample(random_logits(0))


def test_refused_settings_are_refused_by_the_sampler():
    with pytest.raises(RequestError, match="penalty_repeat"):
        Sampler(SamplingParams(repeat_penalty=0.0), VOCAB)


def test_draws_are_those_of_mt19937():
    """The 10000th word of a generator seeded with 5489 is fixed by the C++ standard."""
    draws = Draws(5489)
    words = [draws._word() for _ in range(10000)]
    assert words[-1] == 4123659995


def test_prompt_beyond_the_window_changes_nothing():
    params = replace(EVERYTHING, repeat_last_n=4, dry_penalty_last_n=6)
    long = list(range(60)) * 3
    assert generate(params, prompt=long) == generate(params, prompt=long[-6:])
