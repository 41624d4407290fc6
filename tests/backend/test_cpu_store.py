"""Laws of the CPU store: what is written comes back, copies are copies, freed blocks are empty."""

import subprocess
import sys

import numpy as np
import pytest

from gguf_hybrid.backend.cpu_store import CpuStore
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.demo import demo_path
from gguf_hybrid.memory.store import StoreSpec
from gguf_hybrid.weights.reader import open_gguf

RNG = np.random.default_rng(11)


@pytest.fixture(params=["f16", "f32"])
def store(request: pytest.FixtureRequest) -> CpuStore:
    file = open_gguf(demo_path())
    config = ModelConfig.from_metadata(file.metadata, file.tensors)
    return CpuStore(config, StoreSpec(4, 6, request.param))


def states(store: CpuStore) -> np.ndarray:
    shape = store.snapshot_state(0).to_host().shape
    return RNG.normal(size=shape).astype(np.float32)


def block(store: CpuStore) -> np.ndarray:
    return RNG.integers(0, 256, store.block_nbytes, dtype=np.uint8)


def test_a_loaded_state_comes_back(store: CpuStore) -> None:
    values = [states(store) for _ in range(4)]
    for row in range(4):
        store.load_state(values[row], row)
    for row in range(4):
        assert np.array_equal(store.snapshot_state(row).to_host(), values[row])


def test_a_snapshot_outlives_its_row(store: CpuStore) -> None:
    values = states(store)
    store.load_state(values, 1)
    snapshot = store.snapshot_state(1)
    assert snapshot.nbytes == values.nbytes
    store.load_state(states(store), 1)
    store.restore_state(snapshot, 2)
    assert np.array_equal(store.snapshot_state(2).to_host(), values)
    assert np.array_equal(snapshot.to_host(), values)


def test_copy_state_copies(store: CpuStore) -> None:
    values = states(store)
    store.load_state(values, 0)
    store.copy_state(0, 3)
    store.load_state(states(store), 0)
    assert np.array_equal(store.snapshot_state(3).to_host(), values)


def test_the_pool_holds_whole_rows(store: CpuStore) -> None:
    assert store.state_nbytes >= 4 * states(store).nbytes


def test_blocks_come_back_and_copy(store: CpuStore) -> None:
    first, second = block(store), block(store)
    store.write_block(0, first)
    store.write_block(5, second)
    store.copy_block(5, 1)
    store.write_block(5, first)
    assert np.array_equal(store.read_block(0), first)
    assert np.array_equal(store.read_block(1), second)


def test_committed_memory_follows_writes_and_frees(store: CpuStore) -> None:
    assert store.kv_nbytes() == 0
    store.write_block(3, block(store))
    store.copy_block(3, 4)
    store.commit(250, 257, np.array([0, 4, 5], np.int32))
    assert store.kv_nbytes() == 3 * store.block_nbytes
    store.free_block(3)
    assert store.kv_nbytes() == 2 * store.block_nbytes


@pytest.mark.skipif(sys.platform != "linux", reason="other systems free pages lazily")
def test_a_freed_block_gives_its_pages_back(store: CpuStore) -> None:
    other = block(store)
    store.write_block(2, block(store))
    store.write_block(1, other)
    store.free_block(2)
    assert not store.read_block(2).any()
    assert np.array_equal(store.read_block(1), other)


def test_the_backend_starts_without_mlx() -> None:
    code = "import sys, gguf_hybrid.backend.cpu; assert 'mlx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
