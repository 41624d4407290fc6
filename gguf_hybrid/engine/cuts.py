"""Where a prompt is cut into rows.

A cut changes rounding unless it lies at a multiple of ``CHUNK``, so the places are a property of
the request alone: multiples of ``CHUNK``, the request's own checkpoint positions, the last token,
which is always a row of its own. Load and budget only decide how many pieces go into one pass.
"""

from collections.abc import Iterable

from gguf_hybrid.step import CHUNK

TAIL_STEP = 512
TAIL_GROWTH = 4


def must_cut(n_prompt: int, boundaries: Iterable[int], every: int = 0) -> tuple[int, ...]:
    """Positions no row of the prompt may step over, growing; the last one is its end.

    The state is kept at all others. One of them is a token before the end: the same prompt sent
    again re-reads one token. ``every`` (0 = never) is the distance of further ones.
    """
    inner = {*boundaries, *_regular(n_prompt, every), n_prompt - 1}
    return (*sorted(cut for cut in inner if 0 < cut < n_prompt), n_prompt)


def _regular(n_prompt: int, every: int) -> Iterable[int]:
    """Multiples of ``every``, and places ever sparser towards the beginning: an edit near the end
    of a long prompt is the usual one. All are multiples of ``CHUNK``."""
    if not every:
        return
    yield from range(every, n_prompt, every)
    distance = TAIL_STEP
    while distance < n_prompt:
        yield (n_prompt - distance) // CHUNK * CHUNK
        distance *= TAIL_GROWTH


def row_end(start: int, cuts: tuple[int, ...], budget: int) -> int:
    """End of the row that begins at ``start`` and has at most ``budget`` tokens.

    Returns ``start`` if not even the next piece fits.
    """
    limit = next(cut for cut in cuts if cut > start)
    reach = start + budget
    if reach >= limit:
        return limit
    return max(start, reach // CHUNK * CHUNK)


def first_piece(start: int, cuts: tuple[int, ...]) -> int:
    """Tokens of the smallest row that can begin at ``start``."""
    limit = next(cut for cut in cuts if cut > start)
    return min(limit, (start // CHUNK + 1) * CHUNK) - start
