"""State rows and KV blocks as MLX arrays.

MLX arrays are values, so a pool row is a *reference* into whatever batch array last wrote it. While
the same sequences decode together, the batch written by one step is read whole by the next and
nothing is copied; rows are gathered only when a sequence joins or leaves.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.step import BLOCK, ZERO_STATE

from .base import Floats, StoreSpec

KV_DTYPES = {"f16": mx.float16, "f32": mx.float32}


class RowPool:
    """``n_rows`` rows of one shape, float32, each a slice ``(array, index)`` of a batch."""

    def __init__(self, n_rows: int, shape: tuple[int, ...]) -> None:
        self.zero = mx.zeros((1, *shape), dtype=mx.float32)
        self._refs: list[tuple[mx.array, int]] = [(self.zero, 0)] * n_rows

    def read(self, rows: tuple[int, ...]) -> mx.array:
        """The rows as one array [len(rows), *shape]; the resident batch itself when it fits."""
        refs = [(self.zero, 0) if r == ZERO_STATE else self._refs[r] for r in rows]
        first = refs[0][0]
        whole = first.shape[0] == len(refs)
        if whole and all(a is first and i == at for at, (a, i) in enumerate(refs)):
            return first
        return mx.concatenate([a[i : i + 1] for a, i in refs])

    def write(self, rows: tuple[int, ...], batch: mx.array) -> None:
        """Row ``rows[i]`` becomes ``batch[i]``."""
        assert batch.shape[0] == len(rows)
        for i, row in enumerate(rows):
            self._refs[row] = (batch, i)

    def release_sparse_batches(self) -> None:
        """Copy rows out of batches of which less than half is still in use, so that an idle
        sequence does not keep a whole old batch alive."""
        users: dict[int, list[int]] = {}
        for row, (array, _) in enumerate(self._refs):
            users.setdefault(id(array), []).append(row)
        for rows in users.values():
            array = self._refs[rows[0]][0]
            if array.shape[0] > 2 * len(rows):
                for row in rows:
                    index = self._refs[row][1]
                    self._refs[row] = (_copy(array[index : index + 1]), 0)

    def arrays(self) -> list[mx.array]:
        """The distinct batches in use."""
        return list({id(a): a for a, _ in self._refs}.values())


@dataclass(frozen=True, slots=True)
class MlxSnapshot:
    """One state row of every recurrent layer, copied on the device."""

    conv: tuple[mx.array, ...]
    delta: tuple[mx.array, ...]
    nbytes: int

    def to_host(self) -> Floats:
        layers = [
            np.concatenate([np.array(c).reshape(-1), np.array(d).reshape(-1)])
            for c, d in zip(self.conv, self.delta, strict=True)
        ]
        return np.stack(layers).astype(np.float32, copy=False)


class MlxStore:
    """``gguf_hybrid.backend.base.Store`` over MLX arrays."""

    def __init__(self, config: ModelConfig, spec: StoreSpec) -> None:
        self.spec = spec
        n_recurrent, n_attention = len(config.delta_net_layers), len(config.attention_layers)
        self._conv_shape = (config.ssm_conv_kernel - 1, config.conv_dim)
        size = config.ssm_state_size
        self._delta_shape = (config.ssm_time_step_rank, size, size)
        self.conv = [RowPool(spec.n_state_rows, self._conv_shape) for _ in range(n_recurrent)]
        self.delta = [RowPool(spec.n_state_rows, self._delta_shape) for _ in range(n_recurrent)]
        self.kv_dtype = KV_DTYPES[spec.kv_type]
        self._block_shape = (BLOCK, config.n_head_kv, config.head_dim)
        self._empty = mx.zeros(self._block_shape, dtype=self.kv_dtype)
        self.k: list[dict[int, mx.array]] = [{} for _ in range(n_attention)]
        self.v: list[dict[int, mx.array]] = [{} for _ in range(n_attention)]
        self._before: list[tuple[dict[int, mx.array], int, mx.array]] = []
        self._row_nbytes = 4 * n_recurrent * (_size(self._conv_shape) + _size(self._delta_shape))
        self.state_nbytes = self._row_nbytes * spec.n_state_rows
        self.block_nbytes = 2 * n_attention * self._empty.nbytes

    def kv_nbytes(self) -> int:
        return self.block_nbytes * len(self.k[0]) if self.k else 0

    # -- state rows ---------------------------------------------------------------------------

    def copy_state(self, source: int, target: int) -> None:
        for pool in (*self.conv, *self.delta):
            pool.write((target,), _copy(pool.read((source,))))

    def snapshot_state(self, row: int) -> MlxSnapshot:
        conv = tuple(_copy(pool.read((row,))) for pool in self.conv)
        delta = tuple(_copy(pool.read((row,))) for pool in self.delta)
        mx.eval(conv, delta)
        return MlxSnapshot(conv, delta, self._row_nbytes)

    def restore_state(self, snapshot: MlxSnapshot, row: int) -> None:
        for pool, value in zip(self.conv, snapshot.conv, strict=True):
            pool.write((row,), value)
        for pool, value in zip(self.delta, snapshot.delta, strict=True):
            pool.write((row,), value)

    def load_state(self, values: Floats, row: int) -> None:
        split = _size(self._conv_shape)
        for layer, (conv, delta) in enumerate(zip(self.conv, self.delta, strict=True)):
            flat = values[layer]
            conv.write((row,), mx.array(flat[:split].reshape(1, *self._conv_shape)))
            delta.write((row,), mx.array(flat[split:].reshape(1, *self._delta_shape)))

    def settle(self) -> list[mx.array]:
        """Arrays a step must evaluate so that no lazy graph outlives it."""
        for pool in (*self.conv, *self.delta):
            pool.release_sparse_batches()
        return [a for pool in (*self.conv, *self.delta) for a in pool.arrays()]

    # -- KV blocks ----------------------------------------------------------------------------

    def begin_step(self) -> None:
        self._before.clear()

    def update_block(
        self, cache: dict[int, mx.array], block: int, at: int, values: mx.array
    ) -> None:
        """Cells ``at`` ... of a block; the array from before is kept until the next step begins,
        because a lazy update that fails would take committed cells with it."""
        old = self.block(cache, block)
        self._before.append((cache, block, old))
        cache[block] = mx.slice_update(old, values.astype(old.dtype), mx.array([at]), axes=(0,))

    def undo_step(self, state_rows: Iterable[int]) -> None:
        """Forget what a failed step wrote."""
        for cache, block, old in reversed(self._before):
            cache[block] = old
        self._before.clear()
        for row in state_rows:
            for pool in (*self.conv, *self.delta):
                pool.write((row,), pool.zero)

    def block(self, cache: dict[int, mx.array], block: int) -> mx.array:
        return cache.get(block, self._empty)

    def copy_block(self, source: int, target: int) -> None:
        for cache in (*self.k, *self.v):
            cache[target] = _copy(self.block(cache, source))

    def read_block(self, block: int) -> npt.NDArray[np.uint8]:
        arrays = [
            np.array(self.block(cache, block)).view(np.uint8).reshape(-1)
            for pair in zip(self.k, self.v, strict=True)
            for cache in pair
        ]
        return np.concatenate(arrays) if arrays else np.empty(0, np.uint8)

    def write_block(self, block: int, raw: npt.NDArray[np.uint8]) -> None:
        dtype = np.float16 if self.kv_dtype == mx.float16 else np.float32
        parts = raw.view(dtype).reshape(len(self.k), 2, *self._block_shape)
        for layer, (k, v) in enumerate(zip(self.k, self.v, strict=True)):
            k[block], v[block] = mx.array(parts[layer, 0]), mx.array(parts[layer, 1])

    def free_block(self, block: int) -> None:
        for cache in (*self.k, *self.v):
            cache.pop(block, None)


def _copy(x: mx.array) -> mx.array:
    """A buffer of its own: slices share their parent's, which would stay alive with them."""
    return x * 1


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))
