"""State rows and KV blocks of the CPU backend: two anonymous mappings, committed as touched.

A state row holds all recurrent layers in one piece. Inside, the delta state is kept transposed (the
v dimension fastest), because the kernels add rows of it; ``to_host`` and ``load_state`` turn it.
"""

import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.cpu.bindings import StoreLayout
from gguf_hybrid.memory.store import Bytes, Floats, StoreSpec
from gguf_hybrid.step import BLOCK

KV_NBYTES = {"f16": 2, "f32": 4}
LINE_FLOATS = 16


@dataclass(frozen=True, slots=True)
class CpuSnapshot:
    """A copied state row in the store's own layout, float32 [n_recurrent, layer_floats]."""

    values: Floats
    config: ModelConfig

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def to_host(self) -> Floats:
        return _turned(self.values, self.config)


class CpuStore:
    """``gguf_hybrid.memory.store.Store`` over plain memory."""

    def __init__(self, config: ModelConfig, spec: StoreSpec) -> None:
        self.spec = spec
        self._config = config
        n_recurrent = len(config.delta_net_layers)
        self._n_attention = len(config.attention_layers)
        self._layer_floats = config.conv_state_size + config.delta_state_size
        stride = -(-self._layer_floats // LINE_FLOATS) * LINE_FLOATS
        shape = (spec.n_state_rows, n_recurrent, stride)
        self._states_memory = _map(4 * int(np.prod(shape)))
        _advise(self._states_memory, "MADV_HUGEPAGE")
        self._states = _view(self._states_memory, np.float32, shape)
        self.state_nbytes = self._states.nbytes
        layer_nbytes = 2 * BLOCK * config.n_head_kv * config.head_dim * KV_NBYTES[spec.kv_type]
        self.block_nbytes = self._n_attention * layer_nbytes
        self._block_stride = -(-self.block_nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._kv_memory = _map(spec.n_blocks * self._block_stride)
        _advise(self._kv_memory, "MADV_HUGEPAGE")
        self._kv = _view(self._kv_memory, np.uint8, (spec.n_blocks, self._block_stride))
        self._committed: set[int] = set()
        self.layout = StoreLayout(
            states=self._states.ctypes.data,
            state_row_stride=4 * n_recurrent * stride,
            state_layer_stride=4 * stride,
            kv=self._kv.ctypes.data,
            block_stride=self._block_stride,
            block_layer_stride=layer_nbytes,
            n_state_rows=spec.n_state_rows,
            n_blocks=spec.n_blocks,
            kv_half=spec.kv_type == "f16",
        )

    def kv_nbytes(self) -> int:
        return len(self._committed) * self.block_nbytes

    def commit(self, start: int, end: int, blocks: npt.NDArray[np.int32]) -> None:
        """Positions ``start`` ... ``end - 1`` of this block table are about to be written."""
        self._committed.update(blocks[start // BLOCK : -(-end // BLOCK)].tolist())

    # -- state rows ---------------------------------------------------------------------------

    def copy_state(self, source: int, target: int) -> None:
        self._states[target] = self._states[source]

    def snapshot_state(self, row: int) -> CpuSnapshot:
        return CpuSnapshot(self._states[row, :, : self._layer_floats].copy(), self._config)

    def restore_state(self, snapshot: CpuSnapshot, row: int) -> None:
        self._states[row, :, : self._layer_floats] = snapshot.values

    def load_state(self, values: Floats, row: int) -> None:
        self._states[row, :, : self._layer_floats] = _turned(values, self._config)

    # -- KV blocks ----------------------------------------------------------------------------

    def copy_block(self, source: int, target: int) -> None:
        self._kv[target] = self._kv[source]
        self._committed.add(target)

    def read_block(self, block: int) -> Bytes:
        return self._kv[block, : self.block_nbytes].copy()

    def write_block(self, block: int, raw: Bytes) -> None:
        self._kv[block, : self.block_nbytes] = raw
        self._committed.add(block)

    def free_block(self, block: int) -> None:
        """Gives the pages back to the system; a later reader would see zeros."""
        self._committed.discard(block)
        if self._block_stride:
            at = block * self._block_stride
            _advise(self._kv_memory, "MADV_DONTNEED", at, self._block_stride)


def _map(nbytes: int) -> mmap.mmap:
    """Private memory: a shared mapping, Python's default, never gives pages back."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return mmap.mmap(-1, max(nbytes, mmap.PAGESIZE), flags=flags)


def _view(memory: mmap.mmap, dtype: type, shape: tuple[int, ...]) -> npt.NDArray:  # type: ignore[type-arg]
    return np.frombuffer(memory, dtype, int(np.prod(shape))).reshape(shape)


def _advise(memory: mmap.mmap, name: str, *span: int) -> None:
    """``madvise`` where the system knows that advice."""
    advice = getattr(mmap, name, None)
    if advice is not None:
        memory.madvise(advice, *span)


def _turned(values: Floats, config: ModelConfig) -> Floats:
    """Every layer's delta state with its last two axes exchanged; its own inverse."""
    n_layers, size, split = len(values), config.ssm_state_size, config.conv_state_size
    delta = values[:, split:].reshape(n_layers, config.ssm_time_step_rank, size, size)
    turned = delta.transpose(0, 1, 3, 2).reshape(n_layers, -1)
    return np.concatenate([values[:, :split], turned], axis=1)
