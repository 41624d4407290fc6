"""One sequence as bytes: tokens, KV blocks, its state and earlier states of it.

    magic   8 bytes         version  u32        header_nbytes  u32          (little-endian)
    header  JSON: what the file belongs to, and the sizes of the rest
    tokens  int32 [n_tokens]
    states  float32 [n_states, *state_shape], the last one is that of the whole sequence
    blocks  uint8 [n_blocks, block_nbytes]
    sha256  32 bytes over everything before

Reading trusts nothing: a valid checksum can be made by anyone, so every number is checked too.
"""

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import GgufHybridError
from gguf_hybrid.step import BLOCK

from .kv import n_blocks_for
from .store import Bytes, Floats

MAGIC = b"GHYBSEQ\0"
VERSION = 1
_PREFIX = struct.Struct("<8sII")
_DIGEST_NBYTES = 32


class SequenceFileError(GgufHybridError):
    """A saved sequence that is damaged, or of another model or cache type."""


@dataclass(frozen=True, slots=True)
class SequenceFormat:
    """What a saved sequence must have in common with the server that reads it.

    n_planes     arrays in a KV block: K and V of each attention layer
    state_shape  of one state on the host: (recurrent layers, floats per layer)
    """

    fingerprint: str
    kv_type: str
    n_planes: int
    block_nbytes: int
    state_shape: tuple[int, int]
    n_vocab: int

    @classmethod
    def of(cls, config: ModelConfig, kv_type: str, fingerprint: str) -> "SequenceFormat":
        """The format of a model's sequences with a cache of ``kv_type``."""
        row_floats = config.conv_state_size + config.delta_state_size
        return cls(
            fingerprint=fingerprint,
            kv_type=kv_type,
            n_planes=2 * len(config.attention_layers),
            block_nbytes=BLOCK * config.kv_nbytes_per_token(kv_type, kv_type),
            state_shape=(len(config.delta_net_layers), row_floats),
            n_vocab=config.n_vocab,
        )

    def header(self) -> dict[str, object]:
        """The fields that must be equal."""
        return {
            "fingerprint": self.fingerprint,
            "kv_type": self.kv_type,
            "n_planes": self.n_planes,
            "block_nbytes": self.block_nbytes,
            "block_tokens": BLOCK,
            "state_shape": list(self.state_shape),
            "n_vocab": self.n_vocab,
        }

    def blank(self, raw: Bytes, n_cells: int) -> Bytes:
        """A block without what lies beyond its first ``n_cells`` cells: scratch of anybody's."""
        planes = raw.copy().reshape(self.n_planes, BLOCK, -1)
        planes[:, n_cells:] = 0
        return planes.reshape(-1)


@dataclass(frozen=True, slots=True)
class SavedState:
    """The state after ``n_tokens`` tokens, and the names of the blocks with their KV."""

    n_tokens: int
    blocks: tuple[int, ...]
    values: Floats

    def n_cells(self, index: int) -> int:
        """Cells used of the block at ``index``."""
        return min(BLOCK, self.n_tokens - index * BLOCK)


@dataclass(frozen=True, slots=True)
class SavedSequence:
    """States in growing order, the last one of all ``tokens``; ``blocks`` by name. An empty
    sequence has none of them."""

    tokens: tuple[int, ...]
    states: tuple[SavedState, ...]
    blocks: dict[int, Bytes]

    def cells(self) -> dict[int, int]:
        """Cells used of each block by any state."""
        used = dict.fromkeys((b for state in self.states for b in state.blocks), 0)
        for state in self.states:
            for index, block in enumerate(state.blocks):
                used[block] = max(used[block], state.n_cells(index))
        return used


def pack(saved: SavedSequence, layout: SequenceFormat) -> bytes:
    """The file's bytes."""
    index = {name: i for i, name in enumerate(saved.blocks)}
    header = layout.header() | {
        "n_tokens": len(saved.tokens),
        "n_blocks": len(saved.blocks),
        "states": [
            {"n_tokens": s.n_tokens, "blocks": [index[b] for b in s.blocks]} for s in saved.states
        ],
    }
    text = json.dumps(header).encode()
    parts = [_PREFIX.pack(MAGIC, VERSION, len(text)), text]
    parts.append(np.array(saved.tokens, dtype="<i4").tobytes())
    parts.extend(s.values.astype("<f4", copy=False).tobytes() for s in saved.states)
    cells = saved.cells()
    parts.extend(layout.blank(raw, cells[b]).tobytes() for b, raw in saved.blocks.items())
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def unpack(raw: bytes, layout: SequenceFormat) -> SavedSequence:
    """Read and check a whole file. Raises SequenceFileError in one line."""
    header, offset = _read_header(raw)
    for key, expected in layout.header().items():
        if header.get(key) != expected:
            raise SequenceFileError(f"saved for another model or cache: {key} differs")
    n_tokens = _count(header, "n_tokens")
    n_blocks = _count(header, "n_blocks")
    tables = _tables(header.get("states"), n_tokens, n_blocks)
    state_nbytes = 4 * layout.state_shape[0] * layout.state_shape[1]
    sizes = (4 * n_tokens, len(tables) * state_nbytes, n_blocks * layout.block_nbytes)
    if offset + sum(sizes) + _DIGEST_NBYTES != len(raw):
        raise SequenceFileError("the file's size does not match its header")
    tokens = np.frombuffer(raw, "<i4", n_tokens, offset)
    if not ((tokens >= 0) & (tokens < layout.n_vocab)).all():
        raise SequenceFileError("a token id is outside the vocabulary")
    shape = (len(tables), *layout.state_shape)
    values = np.frombuffer(raw, "<f4", int(np.prod(shape)), offset + sizes[0]).reshape(shape)
    blocks = np.frombuffer(raw, np.uint8, sizes[2], offset + sizes[0] + sizes[1])
    return SavedSequence(
        tuple(tokens.tolist()),
        tuple(SavedState(n, table, v) for (n, table), v in zip(tables, values, strict=True)),
        dict(enumerate(blocks.reshape(n_blocks, layout.block_nbytes))),
    )


def _read_header(raw: bytes) -> tuple[dict[str, Any], int]:
    """The header of an undamaged file, and where the data begins."""
    if len(raw) < _PREFIX.size + _DIGEST_NBYTES or not raw.startswith(MAGIC):
        raise SequenceFileError("not a saved sequence")
    _, version, header_nbytes = _PREFIX.unpack_from(raw)
    if version != VERSION:
        raise SequenceFileError(f"format version {version}, expected {VERSION}")
    body = memoryview(raw)[:-_DIGEST_NBYTES]
    if hashlib.sha256(body).digest() != raw[-_DIGEST_NBYTES:]:
        raise SequenceFileError("truncated or damaged: the checksum differs")
    end = _PREFIX.size + header_nbytes
    try:
        header = json.loads(bytes(body[_PREFIX.size : end]))
    except (ValueError, RecursionError) as error:
        raise SequenceFileError("the header is not readable") from error
    if not isinstance(header, dict):
        raise SequenceFileError("the header is not an object")
    return header, end


def _count(header: dict[str, Any], key: str) -> int:
    value = header.get(key)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise SequenceFileError(f"header field {key} is not a count")
    return value


def _tables(states: Any, n_tokens: int, n_blocks: int) -> list[tuple[int, tuple[int, ...]]]:
    """(tokens, block indices) of each state, growing, every block used."""
    if not isinstance(states, list) or not all(isinstance(s, dict) for s in states):
        raise SequenceFileError("header field states is not a list of objects")
    tables = []
    for state in states:
        n = _count(state, "n_tokens")
        blocks = state.get("blocks")
        if not isinstance(blocks, list) or len(blocks) != n_blocks_for(n):
            raise SequenceFileError("a state has the wrong number of blocks")
        if not all(type(b) is int and 0 <= b < n_blocks for b in blocks):
            raise SequenceFileError("a state names a block that is not in the file")
        if len(set(blocks)) != len(blocks):
            raise SequenceFileError("a state names a block twice")
        tables.append((n, tuple(blocks)))
    lengths = [0, *(n for n, _ in tables)]
    if lengths != sorted(set(lengths)) or lengths[-1] != n_tokens:
        raise SequenceFileError("the states do not grow up to the sequence's length")
    if {b for _, table in tables for b in table} != set(range(n_blocks)):
        raise SequenceFileError("a block belongs to no state")
    return tables
