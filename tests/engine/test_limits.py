"""How the context is shared out: cases of the contract, 18.1."""

import pytest

from gguf_hybrid.engine.limits import share_context


@pytest.mark.parametrize(
    "n_ctx, n_parallel, unified, n_slots, n_ctx_slot",
    [
        (256, 2, False, 2, 256),
        (1000, 3, False, 3, 512),
        (4096, 4, False, 4, 1024),
        (4096, -1, False, 4, 4096),
        (4096, 2, True, 2, 4096),
        (0, 2, False, 2, 32768),
        (0, -1, False, 4, 32768),
        (1 << 20, 1, False, 1, 32768),
        (1, 1, False, 1, 256),
    ],
)
def test_slots_and_their_context(
    n_ctx: int, n_parallel: int, unified: bool, n_slots: int, n_ctx_slot: int
) -> None:
    limits = share_context(n_ctx, n_parallel, unified, 32768)
    assert (limits.n_slots, limits.n_ctx) == (n_slots, n_ctx_slot)


def test_auto_is_unified_and_an_explicit_number_is_not() -> None:
    assert share_context(4096, -1, False, 32768).kv_unified
    assert not share_context(4096, 4, False, 32768).kv_unified


def test_separate_slots_can_all_be_full() -> None:
    limits = share_context(1000, 3, False, 32768)
    assert limits.n_blocks * 256 == limits.n_slots * limits.n_ctx == limits.n_ctx_total


def test_unified_pool_holds_its_tokens_however_they_are_spread() -> None:
    limits = share_context(256, 4, True, 32768)
    lengths = [253, 1, 1, 1]
    assert sum(lengths) == limits.n_ctx_total
    assert sum(-(-n // 256) for n in lengths) <= limits.n_blocks


def test_cap_per_slot() -> None:
    limits = share_context(0, 4, True, 32768, kv_unified_per_slot=2048)
    assert (limits.n_ctx, limits.n_ctx_total) == (2048, 8192)
    assert share_context(4096, 4, True, 32768, kv_unified_per_slot=2048).n_ctx_total == 4096
