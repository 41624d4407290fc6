"""Passes launched on top of each other give what single ones give, whatever ends in between."""

import numpy as np
import pytest
from support.choosing import ChoosingModel, GreedyChoice
from support.engine_harness import Harness, prompt, request
from support.fake_text import Words

from gguf_hybrid.engine.request import Done, Failed, Request
from gguf_hybrid.step import Row, Step


def _request(seed: int, n_predict: int = 20, common: bool = True, **fields: object) -> Request:
    tokens = prompt(5 + 37 * (seed % 9), seed)
    return request(tokens, n_predict, sampler=GreedyChoice(common), **fields)


def _alone(each: Request) -> list[int]:
    """The tokens the request has on the host, with nobody else there."""
    reader = Words(each.reader.stop)  # type: ignore[attr-defined]
    again = request(each.prompt, each.n_predict, reader=reader)
    harness = Harness(n_slots=1)
    harness.run(again)
    return harness.tokens_of(again)


def test_the_next_pass_is_launched_before_the_last_one_is_known() -> None:
    model = ChoosingModel()
    harness = Harness(model=model)
    requests = [_request(i) for i in range(3)]
    assert all(isinstance(end, Done) for end in harness.run(*requests))
    assert [harness.tokens_of(each) for each in requests] == [_alone(each) for each in requests]
    assert model.n_ahead > 15
    n_logits = sum(row.n_logits for step in model.steps for row in step.rows)
    assert n_logits == 3 * 20, "a row whose last token is known by its count takes no part"


@pytest.mark.parametrize("seed", range(12))
def test_any_mixture_gives_every_request_its_own_tokens(seed: int) -> None:
    """Requests come and go, stop at tokens, are cancelled, wait for slots, sample on the host."""
    rng = np.random.default_rng(seed)
    harness = Harness(
        n_slots=int(rng.integers(1, 6)), model=ChoosingModel(), cache_ram_nbytes=10**6
    )
    requests: list[Request] = []
    cancelled: set[int] = set()
    while len(requests) < 25 or harness.engine.is_busy:
        if len(requests) < 25 and rng.random() < 0.2:
            stop = int(rng.integers(0, 97)) if rng.random() < 0.5 else None
            each = _request(
                int(rng.integers(0, 99)),
                int(rng.integers(1, 30)),
                bool(rng.random() < 0.8),
                reader=Words(stop),
            )
            requests.append(each)
            harness.engine.submit([each])
        if requests and rng.random() < 0.03:
            victim = requests[int(rng.integers(0, len(requests)))]
            cancelled.add(victim.id)
            harness.engine.cancel(victim.id)
        harness.step()
        harness.engine.memory.check()
    for each in requests:
        got, wanted = harness.tokens_of(each), _alone(each)
        assert got == (wanted[: len(got)] if each.id in cancelled else wanted)


def test_the_context_ends_where_it_ends_alone() -> None:
    harness = Harness(n_slots=2, n_ctx=256, model=ChoosingModel())
    ends = harness.run(_request(0, -1), _request(1, -1))
    for end, n_prompt in zip(ends, (5, 42), strict=True):
        assert isinstance(end, Done) and end.truncated
        assert end.n_tokens == 255 and len(end.tokens) == 256 - n_prompt


def test_a_row_that_is_not_finite_ends_its_own_request() -> None:
    broken = [50]

    def on_row(row: Row) -> str | None:
        return "nan" if len(row) == 1 and row.start in broken else None

    harness = Harness(n_slots=3, model=ChoosingModel(on_row))
    requests = [_request(i) for i in range(3)]
    ends = harness.run(*requests)
    assert [type(end) for end in ends] == [Done, Failed, Done]
    assert harness.tokens_of(requests[1]) == _alone(requests[1])[:9]
    for i in (0, 2):
        assert harness.tokens_of(requests[i]) == _alone(requests[i])
    broken.clear()
    again = _request(1)
    assert isinstance(harness.run(again)[0], Done)
    assert harness.tokens_of(again) == _alone(again)


def test_a_launch_that_fails_ends_its_own_request() -> None:
    def on_row(row: Row) -> None:
        if len(row) == 1 and row.start == 12:
            raise ValueError("broken")

    harness = Harness(n_slots=2, model=ChoosingModel(on_row))
    requests = [_request(0), _request(1)]
    ends = harness.run(*requests)
    assert [type(end) for end in ends] == [Failed, Done]
    assert harness.tokens_of(requests[1]) == _alone(requests[1])


def test_a_device_that_is_lost_ends_what_was_on_it_and_nothing_else() -> None:
    lost = []

    def on_wait(step: Step) -> None:
        if not lost and step.rows[0].start > 20:
            lost.append(step)
            raise RuntimeError("lost")

    harness = Harness(n_slots=2, model=ChoosingModel(on_wait=on_wait))
    first, second, third = (_request(0), _request(0, 8), _request(2))
    ends = harness.run(first, second)
    assert [type(end) for end in ends] == [Failed, Done]
    assert isinstance(harness.run(third)[0], Done)
    assert harness.tokens_of(third) == _alone(third)


def test_no_block_left_ahead_is_no_error() -> None:
    """Two requests share fewer blocks than both need: one ends, the other goes on to its end."""
    harness = Harness(n_slots=2, n_ctx=512, model=ChoosingModel(), kv_unified=True)
    requests = [request(prompt(250, i), 200, sampler=GreedyChoice()) for i in range(2)]
    ends = harness.run(*requests)
    assert sorted(type(end).__name__ for end in ends) == ["Done", "Failed"]
