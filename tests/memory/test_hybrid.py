"""Laws of the memory, with a model that hashes what it reads."""

import numpy as np
import pytest
from support.fake_model import LAYOUT, FakeModel

from gguf_hybrid.memory.hybrid import HybridMemory, KVExhausted, MemorySizes
from gguf_hybrid.memory.sequence_file import SavedSequence, SequenceFileError, pack, unpack
from gguf_hybrid.step import BLOCK, Step


def tokens(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 97, n).astype(np.int32)


def feed(memory: HybridMemory, model: FakeModel, seq_id: int, ids: np.ndarray) -> np.ndarray:
    """Logits of the last token after one step."""
    row = memory.plan(seq_id, ids, 1)
    logits = model.forward(Step((row,)), memory.store)
    memory.commit([row])
    return logits[0]


def fresh(model: FakeModel, *parts: np.ndarray) -> np.ndarray:
    """Last logits of the parts fed into a memory of their own."""
    sizes = MemorySizes(n_seq_max=1, n_live=8)
    memory = HybridMemory(model.new_store(sizes.store_spec("f32")), sizes)
    return [feed(memory, model, 0, part) for part in parts][-1]


def pack_pool(memory: HybridMemory) -> tuple[int, int, int]:
    return memory.pool.n_used, memory.pool.n_live_used, memory.pool.n_held_only


def test_sequence_equals_one_of_its_own(memory: HybridMemory, model: FakeModel) -> None:
    for seq_id in range(4):
        a, b = tokens(300, seq_id), tokens(5, 50 + seq_id)
        feed(memory, model, seq_id, a)
        assert (feed(memory, model, seq_id, b) == fresh(model, a, b)).all()


def test_cleared_sequence_remembers_nothing(memory: HybridMemory, model: FakeModel) -> None:
    feed(memory, model, 0, tokens(300))
    memory.seq_clear(0)
    assert memory.seq_pos_max(0) == memory.seq_pos_min(0) == -1
    assert (feed(memory, model, 0, tokens(9, 2)) == fresh(model, tokens(9, 2))).all()


def test_abandoned_step_never_happened(memory: HybridMemory, model: FakeModel) -> None:
    a, b = tokens(255), tokens(3, 2)
    feed(memory, model, 0, a)
    for _ in range(3):
        row = memory.plan(0, tokens(200, 9), 1)
        model.forward(Step((row,)), memory.store)
        memory.abandon([row])
        memory.check()
        assert memory.pool.n_used == 1
    assert (feed(memory, model, 0, b) == fresh(model, a, b)).all()


def test_one_token_can_be_taken_back(memory: HybridMemory, model: FakeModel) -> None:
    a, b, c = tokens(256), tokens(1, 2), tokens(2, 3)
    feed(memory, model, 0, a)
    feed(memory, model, 0, b)
    assert memory.seq_rm(0, 256)
    assert (feed(memory, model, 0, c) == fresh(model, a, c)).all()


@pytest.mark.parametrize("p0, p1", [(100, -1), (0, 100), (100, 200), (257, 258)])
def test_removal_that_would_cut_a_state_is_refused(
    memory: HybridMemory, model: FakeModel, p0: int, p1: int
) -> None:
    a, b = tokens(258), tokens(1, 2)
    feed(memory, model, 0, a)
    assert not memory.seq_rm(0, p0, p1)
    assert (feed(memory, model, 0, b) == fresh(model, a, b)).all()


def test_removal_of_everything_or_nothing(memory: HybridMemory, model: FakeModel) -> None:
    feed(memory, model, 0, tokens(20))
    assert memory.seq_rm(0, 20) and memory.seq_rm(0, 5, 5) and memory.n_tokens(0) == 20
    assert memory.seq_rm(0) and memory.n_tokens(0) == 0


@pytest.mark.parametrize(
    "n_rs_seq, widths, kept",
    [
        (1, (4,), ()),
        (1, (4, 1), (4,)),
        (1, (1, 4), (1,)),
        (2, (4,), (3,)),
        (2, (1, 1, 1, 1), (2, 3)),
        (3, (2, 1, 3), (3, 4, 5)),
        (4, (3, 4), (3, 4, 5, 6)),
    ],
)
def test_rollback_reaches_exactly_the_kept_states(
    model: FakeModel, n_rs_seq: int, widths: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    ids = tokens(sum(widths))
    sizes = MemorySizes(n_seq_max=1, n_live=2, n_rs_seq=n_rs_seq)
    for position in range(1, len(ids)):
        memory = HybridMemory(model.new_store(sizes.store_spec("f32")), sizes)
        for part in np.split(ids, np.cumsum(widths)[:-1]):
            feed(memory, model, 0, part)
        assert memory.seq_rm(0, position) == (position in kept)
        memory.check()
        assert memory.n_tokens(0) == (position if position in kept else len(ids))


def test_state_taken_back_inside_a_step_is_the_right_one(model: FakeModel) -> None:
    ids, b = tokens(64), tokens(1, 2)
    sizes = MemorySizes(n_seq_max=1, n_live=2, n_rs_seq=2)
    memory = HybridMemory(model.new_store(sizes.store_spec("f32")), sizes)
    feed(memory, model, 0, np.append(ids, b))
    assert memory.seq_rm(0, 64)
    assert (feed(memory, model, 0, b) == fresh(model, ids, b)).all()


def test_copies_part_ways(memory: HybridMemory, model: FakeModel) -> None:
    a, b, c = tokens(300), tokens(40, 2), tokens(40, 3)
    feed(memory, model, 0, a)
    for target in (1, 2):
        memory.seq_cp(0, target)
    assert memory.pool.n_used == 2
    rows = [memory.plan(s, ids, 1) for s, ids in ((0, b), (1, c), (2, b))]
    logits = model.forward(Step(tuple(rows)), memory.store)
    memory.commit(rows)
    expected = [fresh(model, a, b), fresh(model, a, c), fresh(model, a, b)]
    assert (logits == np.stack(expected)).all()
    assert memory.pool.n_used == 4, "the full block stays shared, each tail is its own"


def test_keep_clears_the_others(memory: HybridMemory, model: FakeModel) -> None:
    for seq_id in range(4):
        feed(memory, model, seq_id, tokens(10, seq_id))
    memory.seq_keep(2)
    assert [memory.n_tokens(s) for s in range(4)] == [0, 0, 10, 0]


def test_exhaustion_changes_nothing(memory: HybridMemory, model: FakeModel) -> None:
    for seq_id in range(4):
        feed(memory, model, seq_id, tokens(2 * BLOCK, seq_id))
    before = pack_pool(memory)
    with pytest.raises(KVExhausted):
        memory.plan(1, tokens(1), 1)
    assert pack_pool(memory) == before
    memory.seq_clear(0)
    expected = fresh(model, tokens(2 * BLOCK, 1), tokens(1))
    assert (feed(memory, model, 1, tokens(1)) == expected).all()


@pytest.mark.parametrize("n", [1, 255, 256, 257, 300])
def test_snapshot_restores_into_any_slot_again_and_again(
    memory: HybridMemory, model: FakeModel, n: int
) -> None:
    a, b = tokens(n), tokens(3, 2)
    feed(memory, model, 0, a)
    snapshot = memory.snapshot(0)
    feed(memory, model, 0, tokens(70, 5))
    for seq_id in (1, 0, 1):
        memory.restore(seq_id, snapshot)
        memory.check()
        assert (feed(memory, model, seq_id, b) == fresh(model, a, b)).all()
    memory.release(snapshot)
    memory.clear()
    assert memory.pool.n_used == 0 and not memory.store.cells


def test_appending_behind_a_snapshot_copies_no_block(
    memory: HybridMemory, model: FakeModel
) -> None:
    feed(memory, model, 0, tokens(100))
    snapshots = []
    for seed in range(5):
        snapshots.append(memory.snapshot(0))
        feed(memory, model, 0, tokens(1, seed))
    assert memory.pool.n_used == 1
    for snapshot in snapshots:
        memory.release(snapshot)


def test_bytes_of_snapshots(memory: HybridMemory, model: FakeModel) -> None:
    feed(memory, model, 0, tokens(300))
    snapshot = memory.snapshot(0)
    assert memory.snapshots_nbytes() == snapshot.state.nbytes
    pools = memory.store.state_nbytes + 2 * memory.store.block_nbytes
    assert memory.nbytes() == pools + snapshot.state.nbytes
    memory.seq_clear(0)
    assert memory.snapshots_nbytes() == snapshot.state.nbytes + 2 * memory.store.block_nbytes
    memory.release(snapshot)
    assert memory.snapshots_nbytes() == 0


def saved(memory: HybridMemory, model: FakeModel) -> tuple[bytes, np.ndarray]:
    """Sequence 0: 300 tokens, with a checkpoint at 256."""
    ids = tokens(300)
    feed(memory, model, 0, ids[:256])
    checkpoint = memory.snapshot(0)
    feed(memory, model, 0, ids[256:])
    raw = pack(memory.save(0, ids.tolist(), [checkpoint]), LAYOUT)
    memory.release(checkpoint)
    return raw, ids


def test_saved_sequence_continues_elsewhere(memory: HybridMemory, model: FakeModel) -> None:
    raw, ids = saved(memory, model)
    memory.clear()
    feed(memory, model, 3, tokens(400, 8))
    loaded = unpack(raw, LAYOUT)
    checkpoints = memory.load(3, loaded)
    assert loaded.tokens == tuple(ids.tolist()) and [c.n_tokens for c in checkpoints] == [256]
    b = tokens(3, 2)
    assert (feed(memory, model, 3, b) == fresh(model, ids[:256], ids[256:], b)).all()
    memory.restore(1, checkpoints[0])
    assert (feed(memory, model, 1, b) == fresh(model, ids[:256], b)).all()
    memory.release(checkpoints[0])


def test_saved_file_holds_nothing_beyond_the_sequence(
    memory: HybridMemory, model: FakeModel
) -> None:
    ids = tokens(30)
    feed(memory, model, 0, ids)
    first = pack(memory.save(0, ids.tolist()), LAYOUT)
    row = memory.plan(0, tokens(50, 7), 1)
    model.forward(Step((row,)), memory.store)
    memory.abandon([row])
    assert pack(memory.save(0, ids.tolist()), LAYOUT) == first


def test_empty_sequence_can_be_saved_and_loaded(memory: HybridMemory, model: FakeModel) -> None:
    feed(memory, model, 1, tokens(10))
    assert memory.load(1, unpack(pack(memory.save(0, []), LAYOUT), LAYOUT)) == []
    assert memory.n_tokens(1) == 0


def test_damaged_file_changes_nothing(memory: HybridMemory, model: FakeModel) -> None:
    raw, _ = saved(memory, model)
    ids, b = tokens(20, 4), tokens(2, 5)
    feed(memory, model, 2, ids)
    before = pack_pool(memory)
    damaged = [b"", raw[:50], raw[:-1], raw + b"x", b"GGUF" + raw[4:]]
    for at in range(0, len(raw), 97):
        damaged.append(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    for bad in damaged:
        with pytest.raises(SequenceFileError):
            memory.load(2, unpack(bad, LAYOUT))
    assert pack_pool(memory) == before
    assert (feed(memory, model, 2, b) == fresh(model, ids, b)).all()


def test_file_too_long_for_the_memory_changes_nothing(
    memory: HybridMemory, model: FakeModel
) -> None:
    ids, b = tokens(20, 4), tokens(2, 5)
    feed(memory, model, 0, tokens(7 * BLOCK))
    feed(memory, model, 1, ids)
    before = pack_pool(memory)
    with pytest.raises(KVExhausted):
        memory.load(1, saved_of(BLOCK + 1, model))
    assert pack_pool(memory) == before
    assert (feed(memory, model, 1, b) == fresh(model, ids, b)).all()
    memory.load(1, saved_of(BLOCK, model))


def saved_of(n: int, model: FakeModel) -> SavedSequence:
    sizes = MemorySizes(n_seq_max=1, n_live=8)
    memory = HybridMemory(model.new_store(sizes.store_spec("f32")), sizes)
    ids = tokens(n)
    feed(memory, model, 0, ids)
    return memory.save(0, ids.tolist())
