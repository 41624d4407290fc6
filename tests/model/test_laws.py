"""Laws of the forward pass, bit for bit: batched = alone, chunked = whole, reused = fresh."""

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from .models import BACKENDS, DENSE, MOE, advance, model_of, sequences, spec_for

Logits = npt.NDArray[np.float32]
RNG = np.random.default_rng(7)
PROMPTS = [RNG.integers(0, 4000, n).tolist() for n in (5, 64, 65, 1, 130, 200, 63, 3)]
MORE = RNG.integers(0, 4000, (8, 4)).tolist()

pytestmark = [
    pytest.mark.parametrize("backend", list(BACKENDS)),
    pytest.mark.parametrize("name", [DENSE, MOE]),
]


@cache
def alone(name: str, backend: str, i: int) -> list[Logits]:
    """Prompt i and four tokens more, fed to a fresh store."""
    model = model_of(name, backend)
    store = model.new_store(spec_for(1))
    (seq,) = sequences(1)
    steps = [PROMPTS[i], *[[t] for t in MORE[i]]]
    return [advance(model, store, [(seq, tokens)])[0] for tokens in steps]


@pytest.mark.parametrize("width", [2, 3, 8])
def test_a_row_does_not_see_its_neighbours(name: str, backend: str, width: int) -> None:
    model = model_of(name, backend)
    store = model.new_store(spec_for(width))
    seqs = sequences(width)
    got = [[x] for x in advance(model, store, list(zip(seqs, PROMPTS, strict=False)))]
    for t in range(4):
        work = [(seq, [MORE[i][t]]) for i, seq in enumerate(seqs)]
        for i, logits in enumerate(advance(model, store, work)):
            got[i].append(logits)
    for i in range(width):
        for mine, expected in zip(got[i], alone(name, backend, i), strict=True):
            assert np.array_equal(mine, expected), f"row {i} of {width}"


def test_joining_and_leaving_changes_nothing_for_others(name: str, backend: str) -> None:
    model = model_of(name, backend)
    store = model.new_store(spec_for(3))
    a, b, c = sequences(3)
    got = [advance(model, store, [(b, PROMPTS[1])])[0]]
    got.append(advance(model, store, [(a, PROMPTS[0]), (b, [MORE[1][0]])])[1])
    got.append(advance(model, store, [(b, [MORE[1][1]]), (c, PROMPTS[4])])[0])
    got.append(advance(model, store, [(c, [1]), (b, [MORE[1][2]]), (a, [2])])[1])
    got.append(advance(model, store, [(b, [MORE[1][3]])])[0])
    for mine, expected in zip(got, alone(name, backend, 1), strict=True):
        assert np.array_equal(mine, expected)


def test_slot_id_and_step_order_do_not_matter(name: str, backend: str) -> None:
    model = model_of(name, backend)
    store = model.new_store(spec_for(4))
    seqs = sequences(4)
    got = advance(model, store, [(seqs[3], PROMPTS[2]), (seqs[1], PROMPTS[0])])[0]
    assert np.array_equal(got, alone(name, backend, 2)[0])


@pytest.mark.parametrize("cuts", [[64], [64, 128], [128], [192], [64, 192]])
def test_a_prompt_cut_at_multiples_of_64_equals_the_whole(
    name: str, backend: str, cuts: list[int]
) -> None:
    model = model_of(name, backend)
    store = model.new_store(spec_for(1))
    (seq,) = sequences(1)
    prompt = PROMPTS[5][:193]
    whole_store = model.new_store(spec_for(1))
    whole = advance(model, whole_store, [(sequences(1)[0], prompt)])[0]
    bounds = [0, *cuts, len(prompt)]
    for first, end in zip(bounds, bounds[1:], strict=False):
        logits = advance(model, store, [(seq, prompt[first:end])])[0]
    assert np.array_equal(logits, whole)


def test_chunked_equals_one_by_one(name: str, backend: str) -> None:
    """The parallel form of the delta rule against the plain recurrence, to rounding."""
    model = model_of(name, backend)
    prompt = PROMPTS[4]
    store = model.new_store(spec_for(1, kv_type="f32"))
    whole = advance(model, store, [(sequences(1)[0], prompt)], n_logits=len(prompt))[0]
    store = model.new_store(spec_for(1, kv_type="f32"))
    (seq,) = sequences(1)
    single = [advance(model, store, [(seq, [t])])[0] for t in prompt]
    assert np.abs(whole - np.concatenate(single)).max() < 1e-3


def test_a_reused_row_equals_a_fresh_one(name: str, backend: str) -> None:
    model = model_of(name, backend)
    store = model.new_store(spec_for(1))
    (first,) = sequences(1)
    advance(model, store, [(first, PROMPTS[5])])
    (again,) = sequences(1)
    got = advance(model, store, [(again, PROMPTS[1])])[0]
    assert np.array_equal(got, alone(name, backend, 1)[0])


def test_an_uncommitted_step_has_not_happened(name: str, backend: str) -> None:
    model = model_of(name, backend)
    store = model.new_store(spec_for(1))
    (seq,) = sequences(1)
    advance(model, store, [(seq, PROMPTS[1])])
    position, state = seq.n, seq.state
    advance(model, store, [(seq, [5])])
    seq.n, seq.state = position, state
    got = advance(model, store, [(seq, [MORE[1][0]])])[0]
    assert np.array_equal(got, alone(name, backend, 1)[1])


def test_restored_equals_uninterrupted(name: str, backend: str) -> None:
    """A snapshot through the host and raw KV blocks, into another row and other blocks."""
    model = model_of(name, backend)
    store = model.new_store(spec_for(2))
    a, b = sequences(2)
    advance(model, store, [(a, PROMPTS[4])])
    store.load_state(store.snapshot_state(a.state).to_host(), b.rows[0])
    store.write_block(b.blocks[0], store.read_block(a.blocks[0]))
    b.n, b.state = a.n, b.rows[0]
    advance(model, store, [(a, [9])])
    got = advance(model, store, [(b, [MORE[4][0]])])[0]
    assert np.array_equal(got, alone(name, backend, 4)[1])


def test_states_after_the_last_tokens_are_kept(name: str, backend: str) -> None:
    """With three rows to write, rolling back k tokens continues as if they had not been fed."""
    from gguf_hybrid.backend.base import StoreSpec
    from gguf_hybrid.step import Row, Step

    model = model_of(name, backend)
    store = model.new_store(StoreSpec(8, 4))
    blocks = np.array([0], np.int32)
    tokens = np.array(PROMPTS[0] + [11, 12, 13], np.int32)
    n = len(PROMPTS[0])
    head = Row(0, 0, tokens[:n], -1, (0,), blocks, 1)
    model.forward(Step((head,)), store)
    drafts = Row(0, n, tokens[n:], 0, (1, 2, 3), blocks, 3)
    verified = model.forward(Step((drafts,)), store)
    for back in (0, 1, 2):
        follow = Row(0, n + 3 - back, np.array([21], np.int32), 1 + back, (4,), blocks, 1)
        got = model.forward(Step((follow,)), store)
        plain = model.new_store(StoreSpec(8, 4))
        model.forward(Step((head,)), plain)
        state = 0
        for i in range(3 - back):
            row = Row(0, n + i, tokens[n + i : n + i + 1], state, (1 + i,), blocks, 1)
            logits = model.forward(Step((row,)), plain)
            assert np.abs(logits[0] - verified[i]).max() < 1e-3
            state = 1 + i
        follow = Row(0, n + 3 - back, np.array([21], np.int32), state, (4,), blocks, 1)
        assert np.abs(got - model.forward(Step((follow,)), plain)).max() < 1e-3


def test_a_failed_step_has_not_happened(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head fails after every layer has written its states and keys."""
    model = model_of(name, backend)
    store = model.new_store(spec_for(1))
    (seq,) = sequences(1)
    advance(model, store, [(seq, PROMPTS[1])])

    def fail(*args: object) -> None:
        raise RuntimeError("injected")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="injected"):
        patched.setattr(model.backend, "logits", fail)
        advance(model, store, [(seq, [5, 6, 7])])
    got = advance(model, store, [(seq, [MORE[1][0]])])[0]
    assert np.array_equal(got, alone(name, backend, 1)[1])
