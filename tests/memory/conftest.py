from collections.abc import Iterator

import pytest
from support.fake_model import FakeModel

from gguf_hybrid.memory.hybrid import HybridMemory, MemorySizes

SIZES = MemorySizes(n_seq_max=4, n_live=8, n_cached=4, n_rs_seq=1)


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def memory(model: FakeModel) -> Iterator[HybridMemory]:
    """A memory whose counts are checked when the test is over."""
    memory = HybridMemory(model.new_store(SIZES.store_spec("f32")), SIZES)
    yield memory
    memory.check()
