"""Reports about slots and state that no other test names: the small inputs of the reports."""

from dataclasses import replace

import numpy as np
import pytest
from engine.test_real_model import Bench, ask, model_of, rows_of, text_prompt
from support.engine_harness import Harness, alone, prompt, request, same_rows

from gguf_hybrid.backend.rope import Rope
from gguf_hybrid.engine.engine import Engine
from gguf_hybrid.engine.limits import share_context
from gguf_hybrid.engine.request import Done


def test_gaps_between_busy_slots_cost_no_pass() -> None:
    """Report 9: slots 0 and 2 busy are one pass for both."""
    h = Harness(n_slots=3)
    pair = [request(prompt(5, i), 20, id_slot=i) for i in (0, 2)]
    h.run(*pair)
    decoding = [step for step in h.model.steps if all(len(row) == 1 for row in step.rows)]
    assert len(decoding) <= 20 and {len(step.rows) for step in decoding} == {2}
    for each in pair:
        assert same_rows(each.sampler.rows, alone(each.prompt, 20))


def test_prompts_of_one_tick_share_a_pass() -> None:
    """Report 10."""
    h = Harness(n_slots=2)
    h.run(request(prompt(40, 1)), request(prompt(64, 2)))
    assert len(h.model.steps[0].rows) == 2


@pytest.mark.parametrize("n", range(20))
def test_burst_of_eight_is_admitted_alike_each_time(n: int) -> None:
    """Report 12, twenty rounds."""
    h = Harness(n_slots=8)
    burst = [request(prompt(10 + n + i, i), 4) for i in range(8)]
    assert all(isinstance(end, Done) for end in h.run(*burst))
    for each in burst:
        assert same_rows(each.sampler.rows, alone(each.prompt, 4))


def test_six_cached_turns_equal_cold_ones() -> None:
    """Report 22, on the demo model and bit for bit."""
    model = model_of("cpu")
    warm = Bench(model, 2, cache_ram_nbytes=1 << 28)
    talk: list[int] = []
    for turn in range(6):
        talk += text_prompt(turn, 30)
        cached, cold = ask(talk, 6), ask(talk, 6)
        (end,) = warm.run(cached)
        Bench(model, 1).run(cold)
        assert (rows_of(cached) == rows_of(cold)).all()
        assert end.timings.prompt_n <= 36 or turn == 0
        talk += end.tokens


def test_unrelated_conversations_take_turns_on_one_slot() -> None:
    """Report 24 without its image: A, B, A."""
    model = model_of("cpu")
    bench = Bench(model, 1, cache_ram_nbytes=1 << 28)
    answers = []
    for i in (1, 2, 1):
        each = ask(text_prompt(i, 80), 6)
        bench.run(each)
        answers.append(rows_of(each))
    assert (answers[0] == answers[2]).all()


def test_angles_are_exact_far_behind_the_training_context() -> None:
    """Reports 61 and 89: positions up to a million keep seven digits."""
    inv_freq = 1e7 ** (-np.arange(0, 64, 2) / 64)
    positions = np.array([0, 65_535, 65_536, 131_071, 1_048_575], np.int32)
    cos, sin = Rope(inv_freq, 1.0).tables(positions)
    turns = np.exp(1j * positions[:, None].astype(np.longdouble) * inv_freq)
    assert np.abs(cos - turns.real).max() < 1e-7 and np.abs(sin - turns.imag).max() < 1e-7


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_a_prompt_beyond_65536_tokens_reads_the_same_in_any_pieces() -> None:
    """Report 61: the state, the positions and the KV cells of 66,000 tokens."""
    rows = []
    for n_ubatch in (512, 2048):
        bench = Bench(model_of("cpu"), 1, n_ubatch=n_ubatch)
        limits = share_context(66_560, 1, False, 1 << 17)
        bench.engine = Engine(model_of("cpu"), replace(bench.engine.options, limits=limits))
        each = ask([*text_prompt(1, 65_900), *text_prompt(2, 100)], 4)
        bench.run(each)
        rows.append(rows_of(each))
    assert np.isfinite(rows[0]).all() and (rows[0] == rows[1]).all()
