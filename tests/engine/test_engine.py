"""Laws of the engine, on a model whose logits are a hash of all it absorbed."""

from dataclasses import replace

import numpy as np
import pytest
from support.engine_harness import Harness, alone, prompt, request, same_rows
from support.fake_model import FakeModel
from support.fake_text import Greedy, Words

from gguf_hybrid.engine.request import Done, Failed, Progress, Started, Token
from gguf_hybrid.errors import ContextOverflowError
from gguf_hybrid.sampling.chain import Sampled
from gguf_hybrid.step import Row

POISON, NAN = 91, 92


def poisoned(row: Row) -> str | None:
    if POISON in row.tokens:
        raise RuntimeError("poison")
    return "nan" if NAN in row.tokens else None


def test_events_of_a_request_come_in_order() -> None:
    h = Harness()
    each = request(prompt(100), 3, return_progress=True)
    (end,) = h.run(each)
    kinds = [type(e) for e in h.events]
    assert kinds == [Started, *[Progress] * 3, *[Token] * 3, Done]
    processed = [e.processed for e in h.events if isinstance(e, Progress)]
    assert processed == [0, 99, 100]
    assert isinstance(end, Done) and end.stop_type == "limit" and not end.truncated
    assert end.tokens == tuple(h.tokens_of(each)) and end.n_tokens == 100 + 3 - 1
    assert (end.timings.cache_n, end.timings.prompt_n, end.timings.predicted_n) == (0, 100, 3)
    assert each.sampler.prompt == list(each.prompt) and each.sampler.accepted == list(end.tokens)


@pytest.mark.parametrize("width", [2, 3, 4, 8])
def test_row_does_not_depend_on_the_others(width: int) -> None:
    h = Harness(n_slots=width)
    requests = [request(prompt(37 * (i + 1), i), 5 + 3 * i) for i in range(width)]
    h.run(*requests)
    for each in requests:
        assert same_rows(each.sampler.rows, alone(each.prompt, each.n_predict))


@pytest.mark.parametrize("n_ubatch", [1, 64, 100, 512])
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 66, 128, 129, 700])
def test_prompt_in_pieces_equals_prompt_at_once(n: int, n_ubatch: int) -> None:
    boundaries = (n // 3, n // 2)
    h = Harness(n_slots=2, n_ubatch=n_ubatch)
    other = request(prompt(300, 9), 30)
    each = request(prompt(n), 4, boundaries=boundaries)
    h.run(other, each)
    assert same_rows(each.sampler.rows, alone(prompt(n), 4, boundaries=boundaries))


def test_used_slot_equals_a_fresh_one() -> None:
    h = Harness(n_slots=1)
    for seed in range(5):
        each = request(prompt(50 + 60 * seed, seed), 6)
        h.run(each)
        assert same_rows(each.sampler.rows, alone(each.prompt, 6))


def test_every_decoding_slot_is_in_every_pass() -> None:
    h = Harness(n_slots=4)
    h.run(*[request(prompt(20, i), 30) for i in range(4)])
    c = h.engine.counters
    assert c.n_decode_rows == 4 * 29 and c.n_decode_passes == 29
    assert c.tokens_predicted == 4 * 30 and c.prompt_tokens == 80


def test_stream_waits_for_no_more_than_the_time_allowed() -> None:
    """At 1 ms per token a pass beside a stream may read 192 prompt tokens, alone 960."""
    h = Harness(n_slots=2, n_ubatch=2048, n_ctx=4096, seconds_per_token=1e-3)
    stream = request(prompt(5), 40)
    h.engine.submit([stream])
    h.step()
    h.step()
    h.model.steps.clear()
    h.run(request(prompt(4000, 1), 1))
    beside = [step.n_tokens - 1 for step in h.model.steps if any(len(r) == 1 for r in step.rows)]
    assert max(beside) == 192


def test_short_prompt_does_not_wait_for_a_long_one() -> None:
    h = Harness(n_slots=2, n_ubatch=128)
    long, short = request(prompt(1500, 1), 1), request(prompt(40, 2), 1)
    h.engine.submit([long])
    h.engine.submit([short])
    h.step()
    h.step()
    assert h.tokens_of(short) and not h.tokens_of(long)


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [POISON, NAN])
@pytest.mark.parametrize("guilty", range(4))
def test_failing_row_ends_only_its_own_request(bad: int, guilty: int) -> None:
    h = Harness(n_slots=4, model=FakeModel(poisoned))
    clean = [tuple(t for t in prompt(90, i) if t < POISON) for i in range(4)]
    requests = [request(p, 6) for p in clean]
    requests[guilty] = request((*clean[guilty][:70], bad), 6)
    ends = h.run(*requests)
    for i, (each, end) in enumerate(zip(requests, ends, strict=True)):
        if i == guilty:
            assert isinstance(end, Failed) and end.error.status == 500
        elif POISON not in end.tokens and NAN not in end.tokens:
            assert same_rows(each.sampler.rows, alone(each.prompt, 6))
    again = request(clean[guilty], 1)
    h.run(again)
    assert same_rows(again.sampler.rows, alone(clean[guilty], 1))


class Failing(Greedy):
    """A sampler that breaks at its third token."""

    def sample(self, logits: np.ndarray) -> Sampled:
        if len(self.rows) == 2:
            raise ZeroDivisionError("sampler")
        return super().sample(logits)


def test_failing_sampler_ends_only_its_own_request() -> None:
    h = Harness(n_slots=3)
    requests = [request(prompt(30, i), 9) for i in range(3)]
    requests[1] = replace(requests[1], sampler=Failing())
    ends = h.run(*requests)
    assert isinstance(ends[1], Failed) and "ZeroDivisionError" in str(ends[1].error)
    for i in (0, 2):
        assert same_rows(requests[i].sampler.rows, alone(prompt(30, i), 9))


def test_too_long_prompt_is_refused_with_both_numbers() -> None:
    h = Harness(n_slots=2, n_ctx=256)
    (end,) = h.run(request(prompt(256)))
    assert isinstance(end, Failed) and isinstance(end.error, ContextOverflowError)
    assert end.error.extra == {"n_prompt_tokens": 256, "n_ctx": 256}
    (end,) = h.run(request(prompt(255)))
    assert isinstance(end, Done) and end.truncated


# -- ends -----------------------------------------------------------------------------------------


def test_full_context_truncates() -> None:
    (end,) = Harness(n_ctx=256).run(request(prompt(4), -1))
    assert isinstance(end, Done)
    assert (end.stop_type, end.truncated) == ("limit", True)
    assert (len(end.tokens), end.n_tokens) == (252, 255)


@pytest.mark.parametrize("n_predict, n_tokens", [(0, 1), (1, 1), (2, 2)])
def test_at_least_one_token(n_predict: int, n_tokens: int) -> None:
    (end,) = Harness().run(request(prompt(10), n_predict))
    assert isinstance(end, Done) and len(end.tokens) == n_tokens


def test_end_token_beats_the_limit() -> None:
    first = int(alone(prompt(10), 1)[0].argmax())
    (end,) = Harness(eog_ids=frozenset({first})).run(request(prompt(10), 1))
    assert isinstance(end, Done) and (end.stop_type, end.text) == ("eos", "")


def test_stop_word_ends_on_its_token() -> None:
    rows = alone(prompt(10), 8)
    expected = [int(row.argmax()) for row in rows]
    at = expected.index(expected[4])
    (end,) = Harness().run(request(prompt(10), 8, reader=Words(stop=expected[4])))
    assert isinstance(end, Done)
    assert (end.stop_type, end.stop_word) == ("word", str(expected[4]))
    assert end.tokens == tuple(expected[: at + 1]) and end.n_stop_cut == 1


# -- slots and queue ------------------------------------------------------------------------------


def test_first_slot_taken_is_the_last_one() -> None:
    h = Harness(n_slots=3)
    h.run(request(prompt(5)))
    assert [e.id_slot for e in h.events if isinstance(e, Started)] == [2]


def test_similar_slot_is_preferred() -> None:
    h = Harness(n_slots=3)
    h.run(*[request(prompt(50, i)) for i in range(3)])
    for i in (1, 0, 2):
        h.events.clear()
        (end,) = h.run(request(prompt(50, i) + prompt(50, 7)))
        assert isinstance(end, Done) and end.id_slot == 2 - i


def test_more_requests_than_slots_wait_in_order() -> None:
    h = Harness(n_slots=2)
    requests = [request(prompt(10, i), 4) for i in range(7)]
    h.run(*requests)
    started = [e.id for e in h.events if isinstance(e, Started)]
    assert started == [each.id for each in requests]


def test_request_for_a_slot_waits_for_that_one_and_gets_it_first() -> None:
    h = Harness(n_slots=2)
    running = [request(prompt(10, i), 5 + 20 * i, id_slot=i) for i in range(2)]
    anywhere, certain = request(prompt(10, 5), 5), request(prompt(10, 6), 5, id_slot=2)
    for each in (*running, anywhere, certain):
        h.engine.submit([each])
    h.finish()
    started = {e.id: e.id_slot for e in h.events if isinstance(e, Started)}
    assert started[certain.id] == 0 and started[running[1].id] == 1
    assert list(started).index(certain.id) < list(started).index(anywhere.id)


def test_several_completions_share_one_prompt() -> None:
    h = Harness(n_slots=4)
    requests = [request(prompt(300), 10) for _ in range(3)]
    busy = request(prompt(20, 3), 3)
    h.engine.submit([busy])
    h.engine.submit(requests)
    ends = h.finish([busy, *requests])
    assert h.engine.counters.prompt_tokens == 320
    for each, end in zip(requests, ends[1:], strict=True):
        assert isinstance(end, Done)
        assert same_rows(each.sampler.rows, alone(prompt(300), 10))
    assert len({e.id_slot for e in ends}) == 4


def test_several_completions_wait_for_enough_slots() -> None:
    h = Harness(n_slots=2)
    first, pair = request(prompt(10), 6), [request(prompt(10, 1), 3) for _ in range(2)]
    later = request(prompt(10, 2), 3)
    h.engine.submit([first])
    h.engine.submit(pair)
    h.engine.submit([later])
    h.finish([first, *pair, later])
    started = [e.id for e in h.events if isinstance(e, Started)]
    assert started == [first.id, *[each.id for each in pair], later.id]


# -- cancelling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 2, 5, 12])
def test_cancel_frees_the_slot_and_touches_nobody(after: int) -> None:
    h = Harness(n_slots=2, n_ubatch=128)
    gone, stays = request(prompt(400, 1), 20), request(prompt(80, 2), 30)
    h.engine.submit([gone])
    h.engine.submit([stays])
    for _ in range(after):
        h.step()
    h.engine.cancel(gone.id)
    assert sum(slot.is_idle for slot in h.engine.slots) == (2 if after == 0 else 1)
    h.finish()
    assert not [e for e in h.events if isinstance(e, Done | Failed) and e.id == gone.id]
    assert same_rows(stays.sampler.rows, alone(stays.prompt, 30))


def test_cancel_of_a_waiting_request() -> None:
    h = Harness(n_slots=1)
    requests = [request(prompt(10, i), 3) for i in range(5)]
    for each in requests:
        h.engine.submit([each])
    h.step()
    h.engine.cancel(requests[2].id)
    h.finish()
    ended = [e.id for e in h.events if isinstance(e, Done)]
    assert ended == [each.id for i, each in enumerate(requests) if i != 2]


def test_cancel_while_others_wait_for_the_prompt() -> None:
    h = Harness(n_slots=2, n_ubatch=64)
    pair = [request(prompt(300), 5) for _ in range(2)]
    h.engine.submit(pair)
    h.step()
    h.engine.cancel(pair[0].id)
    h.finish()
    assert all(slot.is_idle for slot in h.engine.slots)


def test_slot_of_a_cancelled_copy_belongs_to_whoever_takes_it() -> None:
    """Two tasks of two; one of the first leaves its slot to one of the second."""
    h = Harness(n_slots=3, n_ubatch=64)
    first = [request(prompt(600), 5) for _ in range(2)]
    second = [request(prompt(200, 1), 5) for _ in range(2)]
    h.engine.submit(first)
    h.step()
    h.engine.submit(second)
    h.engine.cancel(first[1].id)
    h.finish()
    assert same_rows(first[0].sampler.rows, alone(prompt(600), 5))
    for each in second:
        assert same_rows(each.sampler.rows, alone(prompt(200, 1), 5))


def test_failing_prompt_fails_all_that_would_copy_it() -> None:
    h = Harness(n_slots=3, model=FakeModel(poisoned))
    group = [request((*range(70), POISON), 5) for _ in range(3)]
    h.engine.submit(group)
    ends = h.finish(group)
    assert all(isinstance(end, Failed) for end in ends)
    assert all(slot.is_idle and not slot.tokens for slot in h.engine.slots)


@pytest.mark.parametrize("seed", range(12))
def test_random_joins_leaves_and_cancels_change_nothing_for_the_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    h = Harness(n_slots=int(rng.integers(1, 6)), n_ubatch=int(rng.choice([64, 200, 512])))
    requests, cancelled = [], set()
    for _ in range(60):
        if rng.random() < 0.3:
            n, n_predict = int(rng.integers(1, 400)), int(rng.integers(1, 20))
            tokens = prompt(n, int(rng.integers(5)))
            requests.append(request(tokens, n_predict, cache_prompt=False))
            h.engine.submit([requests[-1]])
        if requests and rng.random() < 0.1:
            each = requests[int(rng.integers(len(requests)))]
            cancelled.add(each.id)
            h.engine.cancel(each.id)
        h.step()
    h.finish()
    for each in requests:
        rows = alone(each.prompt, each.n_predict)
        if each.id in cancelled:
            rows = rows[: len(each.sampler.rows)]
        assert same_rows(each.sampler.rows, rows)
