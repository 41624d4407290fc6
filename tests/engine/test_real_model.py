"""The engine's laws on the trained demo model: nothing of a neighbour shows in a row's logits."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fake_text import Greedy, Words

from gguf_hybrid.backend.base import Backend
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.cpu import library
from gguf_hybrid.demo import demo_path
from gguf_hybrid.engine.engine import Engine
from gguf_hybrid.engine.limits import share_context
from gguf_hybrid.engine.options import EngineOptions
from gguf_hybrid.engine.request import Done, Event, Failed, Request
from gguf_hybrid.engine.scheduler import Pace
from gguf_hybrid.memory.sequence_file import SequenceFormat, pack, unpack
from gguf_hybrid.model.qwen35 import Qwen35, load
from gguf_hybrid.step import BLOCK
from gguf_hybrid.text.tokenizer import Tokenizer
from gguf_hybrid.weights.reader import open_gguf

WORDS = ["copper", "violet", "harbor", "kitten", "marble", "saddle", "walnut", "ginger"]


def backend_of(name: str, config: ModelConfig) -> Backend:
    if name == "cpu":
        if library.find() is None:
            pytest.skip("the CPU library is not built")
        from gguf_hybrid.backend.cpu import CpuBackend

        return CpuBackend(config, n_threads=2)
    import mlx.core as mx

    from gguf_hybrid.backend.mlx import MlxBackend

    return MlxBackend(config, mx.cpu)


@cache
def model_of(name: str) -> Qwen35:
    file = open_gguf(demo_path())
    config = ModelConfig.from_metadata(file.metadata, file.tensors)
    return load(file, config, backend_of(name, config))


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(open_gguf(demo_path()).metadata)


@pytest.fixture(params=["mlx", "cpu"])
def model(request: pytest.FixtureRequest) -> Qwen35:
    return model_of(request.param)


class Bench:
    """An engine over a real model."""

    def __init__(self, model: Qwen35, n_slots: int, **options: Any) -> None:
        limits = share_context(1024 * n_slots, n_slots, False, model.config.n_ctx_train)
        layout = SequenceFormat.of(model.config, "f16", "demo")
        fields = {"eog_ids": frozenset(), "cache_ram_nbytes": 0, "pace": Pace(9.0, 9.0, 1e-6)}
        self.layout = layout
        self.engine = Engine(model, EngineOptions(limits=limits, layout=layout, **fields | options))
        self.events: list[Event] = []

    def run(self, *requests: Request, stagger: int = 0) -> list[Done]:
        for each in requests:
            self.engine.submit([each])
            for _ in range(stagger):
                self.events += self.engine.step()
        while self.engine.is_busy:
            self.events += self.engine.step()
        self.engine.contents.check()
        ends = {e.id: e for e in self.events if isinstance(e, Done | Failed)}
        assert not [e for e in ends.values() if isinstance(e, Failed)]
        return [ends[each.id] for each in requests]  # type: ignore[misc]


_n_requests = iter(range(1 << 30))


def ask(tokens: Sequence[int], n_predict: int = 12, **fields: Any) -> Request:
    fields = {"sampler": Greedy(), "reader": Words()} | fields
    return Request(next(_n_requests), tuple(tokens), n_predict=n_predict, **fields)


def text_prompt(i: int, n: int) -> list[int]:
    """About ``n`` tokens of text of its own."""
    ids = tokenizer().encode(f"Note {i}: the word is {WORDS[i % 8]}. It is said {i} times. " * n)
    return ids[:n]


def rows_of(each: Request) -> np.ndarray:
    return np.stack(each.sampler.rows)  # type: ignore[attr-defined]


def alone(model: Qwen35, each: Request) -> np.ndarray:
    again = ask(each.prompt, each.n_predict, boundaries=each.boundaries)
    Bench(model, 1).run(again)
    return rows_of(again)


def on(backend: str, *values: Any, always: Sequence[Any] = ()) -> list[Any]:
    """Parameters for one backend; those not in ``always`` belong to the long form."""
    return [
        pytest.param(backend, value, marks=() if value in always else pytest.mark.full)
        for value in values
    ]


ALL_WIDTHS = [*on("cpu", 2, 3, 4, 8, always=(2, 3, 4, 8)), *on("mlx", 2, 3, 4, 8, always=(3,))]


@pytest.mark.parametrize("name, width", ALL_WIDTHS)
def test_rows_are_bit_identical_at_any_width(name: str, width: int) -> None:
    model = model_of(name)
    lengths = [5, 130, 64, 65, 1, 200, 33, 90]
    requests = [ask(text_prompt(i, lengths[i]), 4 + 2 * i) for i in range(width)]
    Bench(model, width, n_ubatch=128).run(*requests, stagger=width % 3)
    for each in requests:
        assert (rows_of(each) == alone(model, each)).all()


@pytest.mark.parametrize("name, width", ALL_WIDTHS)
def test_code_word_never_shows_in_another_slot(name: str, width: int) -> None:
    prompts = [f"The word is {word}. Say it again: the word is" for word in WORDS[:width]]
    requests = [ask(tokenizer().encode(text), 16) for text in prompts]
    Bench(model_of(name), width).run(*requests)
    for i, each in enumerate(requests):
        text = tokenizer().detokenize(each.sampler.accepted)  # type: ignore[attr-defined]
        assert not [word for j, word in enumerate(WORDS) if j != i and word in text]


def test_prompt_in_pieces_equals_prompt_at_once(model: Qwen35) -> None:
    whole, pieces = (ask(text_prompt(1, 290), 3, boundaries=(100, 201)) for _ in range(2))
    Bench(model, 1, n_ubatch=2048).run(whole)
    Bench(model, 2, n_ubatch=64).run(ask(text_prompt(2, 9), 8), pieces)
    assert (rows_of(whole) == rows_of(pieces)).all()


def test_used_slot_equals_a_fresh_one(model: Qwen35) -> None:
    bench = Bench(model, 1)
    for i in range(3):
        each = ask(text_prompt(i, 70 + 30 * i), 4)
        bench.run(each)
        assert (rows_of(each) == alone(model, each)).all()


def test_repeated_prompt_is_bit_identical_and_reads_one_token(model: Qwen35) -> None:
    bench = Bench(model, 2, cache_ram_nbytes=1 << 28)
    requests = [ask(text_prompt(3, 150), 8, boundaries=(70,)) for _ in range(3)]
    for i, each in enumerate(requests):
        (end,) = bench.run(each)
        assert end.timings.prompt_n == (1 if i else 150)
        assert (rows_of(each) == rows_of(requests[0])).all()
        bench.run(ask(text_prompt(4 + i, 50), 4))


def test_edit_after_a_checkpoint_is_bit_identical(model: Qwen35) -> None:
    bench = Bench(model, 1, cache_ram_nbytes=1 << 28)
    bench.run(ask(text_prompt(1, 170), 8, boundaries=(100,)))
    edited = ask([*text_prompt(1, 140), *text_prompt(2, 30)], 8, boundaries=(100,))
    (end,) = bench.run(edited)
    assert end.timings.cache_n == 100
    assert (rows_of(edited) == alone(model, edited)).all()


def test_saved_slot_continues_as_if_never_interrupted(model: Qwen35) -> None:
    bench = Bench(model, 1, cache_ram_nbytes=1 << 28)
    (first,) = bench.run(ask(text_prompt(5, 140), 10))
    raw = pack(bench.engine.save_slot(0), bench.layout)
    talk = [*text_prompt(5, 140), *first.tokens, *text_prompt(6, 20)]
    live = ask(talk, 6)
    bench.run(live)
    other = Bench(model, 2, cache_ram_nbytes=1 << 28)
    other.run(ask(text_prompt(7, 60), 3))
    assert other.engine.load_slot(1, unpack(raw, other.layout))
    restored = ask(talk, 6, id_slot=1)
    (end,) = other.run(restored)
    assert end.timings.cache_n == 149
    assert (rows_of(restored) == rows_of(live)).all()


def test_several_completions_equal_single_ones(model: Qwen35) -> None:
    requests = [ask(text_prompt(2, 75), 6) for _ in range(3)]
    bench = Bench(model, 4)
    bench.engine.submit(requests)
    bench.run(ask(text_prompt(3, 30), 20))
    for each in requests:
        assert (rows_of(each) == alone(model, each)).all()


class Poison(Greedy):
    """Turns its own row into NaN at the third token, as a broken kernel would."""

    def sample(self, logits: np.ndarray) -> Any:
        if len(self.rows) == 2:
            logits = np.full_like(logits, np.nan)
        return super().sample(logits)


def test_row_that_turns_nan_leaves_the_others_alone(model: Qwen35) -> None:
    bench = Bench(model, 3)
    requests = [ask(text_prompt(i, 40 + i), 8) for i in range(3)]
    bad = ask(requests[1].prompt, 8, sampler=Poison())
    for each in (requests[0], bad, requests[2]):
        bench.engine.submit([each])
    events: list[Event] = []
    while bench.engine.is_busy:
        events += bench.engine.step()
    assert [e.id for e in events if isinstance(e, Failed)] == [bad.id]
    for each in (requests[0], requests[2]):
        assert (rows_of(each) == alone(model, each)).all()
    bench.run(requests[1])
    assert (rows_of(requests[1]) == alone(model, requests[1])).all()


@pytest.mark.parametrize(
    "name, seed", [*on("cpu", *range(8), always=(0, 1)), *on("mlx", 0, 1, always=())]
)
def test_random_joins_and_cancels_change_nothing(name: str, seed: int) -> None:
    model = model_of(name)
    rng = np.random.default_rng(seed)
    bench = Bench(model, 4, n_ubatch=128)
    requests, cancelled = [], set()
    for i in range(14):
        each = ask(text_prompt(i, int(rng.integers(1, 150))), int(rng.integers(1, 10)))
        requests.append(each)
        bench.engine.submit([each])
        for _ in range(int(rng.integers(0, 3))):
            bench.engine.step()
        if rng.random() < 0.3:
            victim = requests[int(rng.integers(len(requests)))]
            cancelled.add(victim.id)
            bench.engine.cancel(victim.id)
    while bench.engine.is_busy:
        bench.engine.step()
    for each in requests:
        n_rows = len(each.sampler.rows)  # type: ignore[attr-defined]
        if n_rows:
            assert (rows_of(each) == alone(model, each)[:n_rows]).all()
        assert n_rows == each.n_predict or each.id in cancelled


def spoil_scratch(bench: Bench) -> None:
    """Fill with NaN whatever no sequence relies on: rows that are not current, cells behind the
    end, as a failed step may leave them."""
    memory, layout = bench.engine.memory, bench.layout
    current = {memory.state_row(slot.id) for slot in bench.engine.slots}
    for row in set(range(memory.store.spec.n_state_rows)) - current:
        memory.store.load_state(np.full(layout.state_shape, np.nan, np.float32), row)
    for slot in bench.engine.slots:
        for index, block in enumerate(memory.blocks(slot.id)):
            used = max(0, min(BLOCK, len(slot.tokens) - index * BLOCK))
            raw = memory.store.read_block(block).reshape(layout.n_planes, BLOCK, -1)
            raw[:, used:] = 0xFF
            memory.store.write_block(block, raw.reshape(-1))


def test_scratch_is_never_read(model: Qwen35) -> None:
    talk = [text_prompt(1, 90), text_prompt(2, 40)]
    clean, spoiled = Bench(model, 2), Bench(model, 2)
    rows = []
    for bench in (clean, spoiled):
        (first,) = bench.run(ask(talk[0], 5))
        if bench is spoiled:
            spoil_scratch(bench)
        follow_up = ask([*talk[0], *first.tokens, *talk[1]], 5)
        (end,) = bench.run(follow_up)
        assert end.timings.cache_n == 94
        rows.append(rows_of(follow_up))
    assert (rows[0] == rows[1]).all()


def resident_nbytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("name, n", [("cpu", 200), ("mlx", 30)])
def test_memory_returns_after_many_conversations(name: str, n: int) -> None:
    """What many conversations leave behind is the budget and a constant, 32 MiB."""
    budget = 12 << 20
    bench = Bench(model_of(name), 2, cache_ram_nbytes=budget)
    bench.run(ask(text_prompt(0, 300), 4))
    before = resident_nbytes()
    for i in range(n):
        bench.run(ask([i, *text_prompt(i, 40 + i)], 4, boundaries=(20,)))
        assert bench.engine.cache.stats.n_bytes <= budget
    assert bench.engine.cache.stats.n_bytes > budget / 2
    assert resident_nbytes() - before < budget + (32 << 20)
