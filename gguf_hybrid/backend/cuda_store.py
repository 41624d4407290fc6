"""State rows and KV blocks in device memory.

A state row holds all recurrent layers in one piece, and a KV block all attention layers, so that
each is copied at once. One more row and one more block than asked for take the writes of pad rows.
The whole KV pool is allocated when the store is made: captured graphs need its address.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import BackendError
from gguf_hybrid.memory.store import Bytes, Floats, StoreSpec
from gguf_hybrid.metal.driver import Device
from gguf_hybrid.step import BLOCK


@dataclass(slots=True)
class CudaSnapshot:
    """A copied state row on the device, given back with the object."""

    device: Device
    address: int
    shape: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return 4 * self.shape[0] * self.shape[1]

    def to_host(self) -> Floats:
        values = np.empty(self.shape, np.float32)
        self.device.download(values, self.address)
        self.device.synchronize()
        return values

    def __del__(self) -> None:
        self.device.release(self.address)


class CudaStore:
    """``gguf_hybrid.memory.store.Store`` in device memory. KV is f16."""

    def __init__(self, device: Device, config: ModelConfig, spec: StoreSpec) -> None:
        if spec.kv_type != "f16":
            raise BackendError(f"cuda: KV type {spec.kv_type} is not supported, only f16")
        self.spec = spec
        self._device = device
        self._shape = (
            len(config.delta_net_layers),
            config.conv_state_size + config.delta_state_size,
        )
        self.layer_floats = self._shape[1]
        self.row_floats = self._shape[0] * self._shape[1]
        self.scratch_row, self.scratch_block = spec.n_state_rows, spec.n_blocks
        self.state_nbytes = 4 * self.row_floats * spec.n_state_rows
        self.states = device.allocate(4 * self.row_floats * (spec.n_state_rows + 1))
        self.layer_halves = 2 * BLOCK * config.n_head_kv * config.head_dim
        self.block_halves = self.layer_halves * len(config.attention_layers)
        self.block_nbytes = 2 * self.block_halves
        self.kv = device.allocate(self.block_nbytes * (spec.n_blocks + 1))
        self.graphs: dict[Any, Any] = {}
        """Captured decode steps over this store, by the backend's key."""

    def kv_nbytes(self) -> int:
        return self.block_nbytes * self.spec.n_blocks

    def state_address(self, row: int) -> int:
        return self.states + 4 * self.row_floats * row

    def block_address(self, block: int) -> int:
        return self.kv + self.block_nbytes * block

    # -- state rows ---------------------------------------------------------------------------

    def copy_state(self, source: int, target: int) -> None:
        self._device.copy(
            self.state_address(target), self.state_address(source), 4 * self.row_floats
        )

    def snapshot_state(self, row: int) -> CudaSnapshot:
        copy = CudaSnapshot(self._device, self._device.allocate(4 * self.row_floats), self._shape)
        self._device.copy(copy.address, self.state_address(row), copy.nbytes)
        return copy

    def restore_state(self, snapshot: CudaSnapshot, row: int) -> None:
        self._device.copy(self.state_address(row), snapshot.address, snapshot.nbytes)

    def load_state(self, values: Floats, row: int) -> None:
        assert values.shape == self._shape
        self._device.upload(self.state_address(row), np.ascontiguousarray(values, np.float32))
        self._device.synchronize()

    # -- KV blocks ----------------------------------------------------------------------------

    def copy_block(self, source: int, target: int) -> None:
        self._device.copy(self.block_address(target), self.block_address(source), self.block_nbytes)

    def read_block(self, block: int) -> Bytes:
        raw = np.empty(self.block_nbytes, np.uint8)
        self._device.download(raw, self.block_address(block))
        self._device.synchronize()
        return raw

    def write_block(self, block: int, raw: Bytes) -> None:
        self._device.upload(self.block_address(block), np.ascontiguousarray(raw))
        self._device.synchronize()

    def free_block(self, block: int) -> None:
        """Nothing to return: the pool is one allocation."""
