"""The gated delta rule of a prompt row: whole chunks at once, what is left over token by token.

Chunks lie at absolute multiples of ``CHUNK``, so cutting a prompt there changes no bit. In front of
the first whole chunk of a row and behind the last the recurrence runs, in float32.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.step import CHUNK, Row

from .cuda_blocks import DeltaNet
from .cuda_kernels import Kernels, Scratch
from .cuda_ops import Inputs, Ops
from .cuda_store import CudaStore

SCAN_ROWS, CHUNK_ROWS = 16, 32
"""Rows of a head's state that a threadgroup carries through the tokens."""
MAX_CHUNKS = 32
"""Chunks prepared before the state goes through them: bounds the scratch."""


class Segment(NamedTuple):
    """Tokens ``first`` ... ``first + n`` of a row. If ``is_aside``, only for the states after them:
    the same tokens follow as a chunk."""

    first: int
    n: int
    in_chunks: bool
    is_aside: bool = False

    @property
    def end(self) -> int:
        return self.first + self.n


def segments(start: int, n: int, n_writes: int) -> Iterator[Segment]:
    """Segments of a row of ``n`` tokens from position ``start`` that leaves the states after its
    last ``n_writes`` tokens. Chunks give no states inside them."""
    first = min(-start % CHUNK, n)
    if first:
        yield Segment(0, first, in_chunks=False)
    end = first + (n - first) // CHUNK * CHUNK
    while first < end:
        # Chunks that end behind this have inside them a token whose state is wanted.
        plain = min(end, n + 1 - n_writes)
        size = min((plain - first) // CHUNK, MAX_CHUNKS) * CHUNK
        if size <= 0:
            size = CHUNK
            yield Segment(first, size - 1, in_chunks=False, is_aside=True)
        yield Segment(first, size, in_chunks=True)
        first += size
    if first < n:
        yield Segment(first, n - first, in_chunks=False)


class DeltaRule:
    """Launches of the rule over one row, between the projections and the gated norm."""

    def __init__(self, config: ModelConfig, kernels: Kernels, scratch: Scratch, ops: Ops) -> None:
        self._config, self._kernels, self._scratch, self._ops = config, kernels, scratch, ops

    def run(
        self, w: DeltaNet, inputs: tuple[int, int, int], index: int, run: Inputs,
        store: CudaStore, row: Row,
    ) -> int:  # fmt: skip
        """The address of o, float32 [n, value_dim], for qkv, alpha and beta of layer ``index``."""
        c, n, n_writes = self._config, len(row), len(row.state_write)
        states = store.states + 4 * index * store.layer_floats
        mixed, gates = self._convolve(w, inputs, run, store, states, row)
        o = self._ops.floats("scanned", n, c.value_dim)
        read = run.read_rows
        for part in segments(row.start, n, n_writes):
            # The state goes on from the row of its age, or from that of the last token.
            after = n - part.end
            write = run.write_rows + (4 * after if after < n_writes else 0)
            launch = self._chunks if part.in_chunks else self._scan
            launch(part.n, max(n_writes - after, 1), read, write, store, states,
                   mixed + 4 * part.first * c.conv_dim,
                   gates + 8 * part.first * c.ssm_time_step_rank,
                   o + 4 * part.first * c.value_dim)  # fmt: skip
            if not part.is_aside:
                read = write
        return o

    def _sizes(self) -> dict[str, int]:
        c = self._config
        return {"D": c.ssm_state_size, "HK": c.ssm_group_count, "HV": c.ssm_time_step_rank}

    def _convolve(
        self, w: DeltaNet, inputs: tuple[int, int, int], run: Inputs, store: CudaStore,
        states: int, row: Row,
    ) -> tuple[int, int]:  # fmt: skip
        """q, k, v channels [n, conv_dim], and log decay and rate [n, heads, 2]."""
        c, n = self._config, len(row)
        mixed = self._ops.floats("mixed", n, c.conv_dim)
        gates = self._ops.floats("gates", n, 2 * c.ssm_time_step_rank)
        convolve = self._kernels(
            "convolve",
            **self._sizes(),
            KC=c.ssm_conv_kernel,
            ROW_FLOATS=store.row_floats,
            EPS=c.rms_eps,
        )
        convolve.launch(
            (2 * c.ssm_group_count + c.ssm_time_step_rank, n, 1), c.ssm_state_size, *inputs, w.taps,
            w.dt_bias, w.a, run.read_rows, run.write_rows, states, states, mixed, gates, n,
            len(row.state_write),
        )  # fmt: skip
        return mixed, gates

    def _scan(
        self, n: int, n_writes: int, read: int, write: int, store: CudaStore, states: int,
        mixed: int, gates: int, o: int,
    ) -> None:  # fmt: skip
        c = self._config
        scan = self._kernels(
            "delta_scan",
            **self._sizes(),
            KC=c.ssm_conv_kernel,
            TILED=c.tiled_v_heads,
            ROW_FLOATS=store.row_floats,
        )
        scan.launch(
            (c.ssm_time_step_rank, c.ssm_state_size // SCAN_ROWS, 1), 128, mixed, gates, read,
            write, states, states, o, n, n_writes,
        )  # fmt: skip

    def _chunks(
        self, n: int, _: int, read: int, write: int, store: CudaStore, states: int,
        mixed: int, gates: int, o: int,
    ) -> None:  # fmt: skip
        c, n_chunks, size = self._config, n // CHUNK, self._config.ssm_state_size
        heads = c.ssm_time_step_rank
        parts = self._scratch("parts", n_chunks * heads * 16 * (24 * size + 8 * CHUNK))
        values = self._scratch("values", n_chunks * heads * 4 * CHUNK * size)
        decays = self._scratch("decays", n_chunks * heads * 4)
        prepare = self._kernels("delta_chunk_parts", **self._sizes(), TILED=c.tiled_v_heads)
        prepare.launch((n_chunks, heads, 1), 256, mixed, gates, parts, values, decays)
        carry = self._kernels(
            "delta_chunk_state",
            **self._sizes(),
            KC=c.ssm_conv_kernel,
            ROW_FLOATS=store.row_floats,
        )
        carry.launch(
            (heads, size // CHUNK_ROWS, 1), 128, parts, values, decays, read, write, states,
            states, o, n_chunks,
        )  # fmt: skip
