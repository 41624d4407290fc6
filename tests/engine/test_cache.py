"""Laws of the prompt cache: a warm answer equals the cold one, and little is read twice."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_harness import Harness, alone, prompt, request, same_rows
from support.fake_model import FakeModel

from gguf_hybrid.engine.request import Done, Request

BUDGET = 1 << 20


def exact(n_slots: int = 1, **options: Any) -> Harness:
    """A harness whose model gives the same result however prompts are cut."""
    fields = {"cache_ram_nbytes": BUDGET} | options
    return Harness(n_slots=n_slots, model=FakeModel(rounds=False), **fields)


def cold(each: Request) -> list[np.ndarray]:
    again = request(each.prompt, each.n_predict)
    Harness(n_slots=1, model=FakeModel(rounds=False)).run(again)
    return again.sampler.rows


def ask(h: Harness, tokens: tuple[int, ...], n_predict: int = 5, **fields: Any) -> Done:
    """Run a request, compare it with a cold one, and check the sum of the counts."""
    each = request(tokens, n_predict, **fields)
    (end,) = h.run(each)
    assert isinstance(end, Done)
    assert same_rows(each.sampler.rows, cold(each))
    assert end.timings.cache_n + end.timings.prompt_n == len(tokens)
    assert h.engine.cache.stats.n_bytes <= (h.options.cache_ram_nbytes or 0)
    return end


@pytest.mark.parametrize("n", [1, 2, 3, 64, 65, 66, 128, 129, 255, 256, 257, 300])
def test_same_prompt_again_reads_one_token(n: int) -> None:
    h = exact()
    assert ask(h, prompt(n)).timings.prompt_n == n
    for _ in range(3):
        assert ask(h, prompt(n)).timings.prompt_n == 1


@pytest.mark.parametrize("n", [40, 128, 200])
def test_warm_rows_are_bit_identical_where_the_cuts_are_alike(n: int) -> None:
    """With a model that rounds at every cut."""
    h = Harness(n_slots=2, cache_ram_nbytes=BUDGET)
    for _ in range(3):
        each = request(prompt(n), 6, boundaries=(30,))
        h.run(each, request(prompt(50, 9), 4))
        assert same_rows(each.sampler.rows, alone(prompt(n), 6, boundaries=(30,)))


def test_longer_conversation_reads_only_what_is_new() -> None:
    h = exact()
    first = ask(h, prompt(100))
    talk = prompt(100) + first.tokens + prompt(30, 2)
    assert ask(h, talk).timings.prompt_n == len(talk) - 104


def test_edit_reads_from_the_last_checkpoint_before_it() -> None:
    h = exact()
    ask(h, prompt(300), boundaries=(120, 200))
    for at, reused in ((290, 200), (200, 200), (199, 120), (130, 120), (119, 0), (0, 0)):
        edited = prompt(at) + prompt(300 - at, 5)
        h = exact()
        ask(h, prompt(300), boundaries=(120, 200))
        assert ask(h, edited).timings.cache_n == reused


def test_tokens_are_counted_by_where_they_came_from() -> None:
    h = exact()
    first = ask(h, prompt(300), boundaries=(120,))
    ask(h, prompt(300) + first.tokens + prompt(10, 1))
    ask(h, prompt(250) + prompt(10, 2))
    c = h.engine.counters
    assert c.prompt_tokens == 300 + 11 + 140 and c.prompt_tokens_cached == 304 + 120
    assert c.prompt_tokens_restored == 120 and c.prompt_tokens_reread == 130


def test_shorter_prompt_works() -> None:
    h = exact()
    ask(h, prompt(300), boundaries=(120,))
    assert ask(h, prompt(250)).timings.cache_n == 120
    assert ask(h, prompt(120)).timings.cache_n == 0
    assert ask(h, prompt(121)).timings.cache_n == 120


def test_long_prompt_has_checkpoints_at_regular_steps() -> None:
    h = exact(checkpoint_min_step=100)
    ask(h, prompt(700))
    edited = prompt(500) + prompt(200, 3)
    assert ask(h, edited).timings.cache_n == 384


def test_displaced_conversation_comes_back_into_any_slot() -> None:
    h = exact(n_slots=2, slot_prompt_similarity=0.0)
    ends = [ask(h, prompt(80, seed)) for seed in range(6)]
    for seed, end in enumerate(ends):
        talk = prompt(80, seed) + end.tokens + prompt(9, 50 + seed)
        assert ask(h, talk).timings.prompt_n == len(talk) - 84


def test_common_beginning_is_shared() -> None:
    h = exact(n_slots=2)
    ask(h, prompt(150) + prompt(20, 1), boundaries=(150,))
    for seed in (2, 3, 4):
        end = ask(h, prompt(150) + prompt(20, seed), boundaries=(150,))
        assert end.timings.cache_n == 150


def test_request_without_cache_neither_takes_nor_leaves_anything() -> None:
    h = exact()
    ask(h, prompt(90))
    before = h.engine.cache.stats.n_entries
    assert ask(h, prompt(90), cache_prompt=False).timings.cache_n == 0
    ask(h, prompt(70, 3), cache_prompt=False)
    ask(h, prompt(70, 3), cache_prompt=False)
    assert h.engine.cache.stats.n_entries == before + 1, "only the displaced first conversation"


def test_no_budget_means_no_entries() -> None:
    h = exact(cache_ram_nbytes=0)
    first = ask(h, prompt(90))
    assert h.engine.cache.stats == type(h.engine.cache.stats)(0, 0, 0)
    talk = prompt(90) + first.tokens + prompt(4, 1)
    assert ask(h, talk).timings.cache_n == 94, "the slot itself is still continued"
    assert ask(h, talk).timings.cache_n == 0


def test_no_checkpoints_still_parks_conversations() -> None:
    h = exact(ctx_checkpoints=0)
    first = ask(h, prompt(90))
    assert h.engine.cache.stats.n_entries == 0
    ask(h, prompt(80, 1))
    assert h.engine.cache.stats.n_entries == 1
    assert ask(h, prompt(90) + first.tokens + prompt(3, 2)).timings.cache_n == 94


def test_checkpoints_of_a_conversation_are_bounded() -> None:
    h = exact(ctx_checkpoints=3)
    ask(h, prompt(300), boundaries=tuple(range(20, 300, 20)))
    assert h.engine.cache.stats.n_entries == 3
    assert ask(h, prompt(300)).timings.prompt_n == 1


def test_budget_holds_over_many_conversations() -> None:
    budget = 20_000
    h = exact(n_slots=2, cache_ram_nbytes=budget)
    for seed in range(60):
        ask(h, prompt(40 + seed * 5, seed), boundaries=(20,))
    assert 0 < h.engine.cache.stats.n_bytes <= budget
    used = h.engine.memory.pool.n_used
    assert used * h.engine.memory.store.block_nbytes <= budget + 4 * 2048


def test_conversation_in_use_outlives_idle_ones() -> None:
    h = exact(cache_ram_nbytes=12_000)
    ask(h, prompt(200), boundaries=(190,))
    for seed in range(1, 12):
        ask(h, prompt(60, seed))
        assert ask(h, prompt(190) + prompt(5, seed)).timings.cache_n == 190


def test_unified_pool_parks_idle_slots_for_a_new_task() -> None:
    h = exact(n_slots=3, kv_unified=True, n_ctx=1024)
    for seed in range(3):
        ask(h, prompt(300, seed))
    assert sum(bool(slot.tokens) for slot in h.engine.slots) == 1
    assert ask(h, prompt(300, 0)).timings.prompt_n == 1


def test_unified_pool_makes_room_by_emptying_idle_slots() -> None:
    h = exact(n_slots=4, kv_unified=True, n_ctx=1024, cache_idle_slots=False)
    for seed in range(4):
        ask(h, prompt(260, seed))
    ask(h, prompt(900, 9))
    assert sum(bool(slot.tokens) for slot in h.engine.slots) < 4
    assert ask(h, prompt(260, 3)).timings.prompt_n == 1


def test_full_unified_pool_fails_who_needs_more_and_nobody_else() -> None:
    h = Harness(n_slots=2, kv_unified=True, n_ctx=512)
    a, b = request(prompt(250), -1), request(prompt(400, 1), -1)
    ends = h.run(a, b)
    done = [end for end in ends if isinstance(end, Done)]
    assert len(done) >= 1 and all(end.truncated for end in done)
    for each, end in zip((a, b), ends, strict=True):
        if isinstance(end, Done):
            assert same_rows(each.sampler.rows[:50], alone(each.prompt, 50))
        else:
            assert str(end.error) == "Context size has been exceeded." and end.error.status == 500


def test_erase_forgets_the_conversation() -> None:
    h = exact()
    ask(h, prompt(90))
    assert h.engine.erase_slot(0) == 94
    assert ask(h, prompt(90)).timings.cache_n == 0


prompts = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 330), st.integers(0, 3), st.integers(0, 60)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(edits=prompts, n_slots=st.integers(1, 3), budget=st.sampled_from([0, 5_000, BUDGET]))
def test_warm_equals_cold_whatever_was_sent_before(
    edits: list[tuple[int, int, int, int]], n_slots: int, budget: int
) -> None:
    """Prompts that share beginnings of every length, with tails of their own."""
    h = exact(n_slots=n_slots, cache_ram_nbytes=budget)
    for seed, n, tail_seed, n_tail in edits:
        ask(h, prompt(n, seed) + prompt(n_tail, 10 + tail_seed), 3, boundaries=(n, n // 2))


@settings(max_examples=20, deadline=None)
@given(edits=prompts, unified=st.booleans())
def test_warm_equals_cold_with_others_running(
    edits: list[tuple[int, int, int, int]], unified: bool
) -> None:
    h = exact(n_slots=3, kv_unified=unified, n_ctx=1024)
    requests = [
        request(prompt(n, seed) + prompt(n_tail, 10 + tail), 4, boundaries=(n,))
        for seed, n, tail, n_tail in edits
    ]
    for each, end in zip(requests, h.run(*requests), strict=True):
        assert isinstance(end, Done)
        assert same_rows(each.sampler.rows, cold(each))


def test_room_made_for_a_restored_conversation_may_cost_its_entry() -> None:
    """Full pool, and a budget for one entry: parking an idle slot drops the entry looked for."""
    h = exact(n_slots=3, kv_unified=True, n_ctx=512, cache_ram_nbytes=4_120, cache_idle_slots=False)
    ask(h, prompt(300), id_slot=2)
    h.engine.contents.clear(h.engine.slots[2])
    assert h.engine.cache.stats.n_entries == 1
    for slot in h.engine.slots[:2]:
        ask(h, prompt(260, 1 + slot.id), id_slot=slot.id, cache_prompt=False)
        slot.is_cacheable = True
    assert ask(h, prompt(300), id_slot=2).timings.cache_n == 0
