"""The compiled library and a pool of two threads; skipped where the library is not built."""

from collections.abc import Iterator

import pytest

from gguf_hybrid.cpu.library import Library, Pool, find, load


@pytest.fixture(scope="session")
def library() -> Library:
    if find() is None:
        pytest.skip("the CPU library is not built")
    return load()


@pytest.fixture
def pool(library: Library) -> Iterator[Pool]:
    with Pool(library, 2) as pool:
        yield pool
