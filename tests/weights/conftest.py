"""A builder of small GGUF files, byte by byte, so that it can also make damaged ones."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType

STRING, ARRAY = 8, 9
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def packed_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def packed_value(type_id: int, value: object) -> bytes:
    if type_id == STRING:
        assert isinstance(value, str | bytes)
        return packed_string(value)
    return struct.pack("<" + CODES[type_id], value)


@dataclass
class GGUFBuilder:
    """Collects keys and tensors; `build` gives the bytes of a file."""

    version: int = 3
    alignment: int = 32
    fields: list[bytes] = field(default_factory=list)
    infos: list[bytes] = field(default_factory=list)
    data: bytes = b""
    n_fields: int | None = None
    n_tensors: int | None = None

    def raw_field(self, key: str | bytes, type_id: int, raw: bytes) -> "GGUFBuilder":
        self.fields.append(packed_string(key) + struct.pack("<i", type_id) + raw)
        return self

    def field(self, key: str, type_id: int, value: object) -> "GGUFBuilder":
        return self.raw_field(key, type_id, packed_value(type_id, value))

    def array(self, key: str, item_id: int, values: list[object]) -> "GGUFBuilder":
        items = b"".join(packed_value(item_id, value) for value in values)
        return self.raw_field(key, ARRAY, struct.pack("<iQ", item_id, len(values)) + items)

    def tensor(
        self,
        name: str | bytes,
        ne: tuple[int, ...],
        data: bytes,
        type_id: int = 0,
        offset: int | None = None,
    ) -> "GGUFBuilder":
        at = len(self.data) if offset is None else offset
        dims = struct.pack(f"<I{len(ne)}q", len(ne), *ne)
        self.infos.append(packed_string(name) + dims + struct.pack("<iQ", type_id, at))
        self.data += data + bytes(-len(data) % self.alignment)
        return self

    def build(self) -> bytes:
        n_tensors = len(self.infos) if self.n_tensors is None else self.n_tensors
        n_fields = len(self.fields) if self.n_fields is None else self.n_fields
        head = b"GGUF" + struct.pack("<IQQ", self.version, n_tensors, n_fields)
        head += b"".join(self.fields) + b"".join(self.infos)
        return head + bytes(-len(head) % self.alignment) + self.data


@pytest.fixture
def builder() -> type[GGUFBuilder]:
    return GGUFBuilder


@pytest.fixture
def gguf_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes bytes (or what a builder builds) to a file and returns its path."""

    def write(content: bytes | GGUFBuilder, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.build())
        return path

    return write


# H, blocks, dense width, heads, KV heads, K heads, V heads, experts, top-k, expert width
RELEASED = {
    "0.8B": (1024, 24, 3584, 8, 2, 16, 16, 0, 0, 0),
    "2B": (2048, 24, 6144, 8, 2, 16, 16, 0, 0, 0),
    "4B": (2560, 32, 9216, 16, 4, 16, 32, 0, 0, 0),
    "9B": (4096, 32, 12288, 16, 4, 16, 32, 0, 0, 0),
    "27B": (5120, 64, 17408, 24, 4, 16, 48, 0, 0, 0),
    "35B-A3B": (2048, 40, 0, 16, 2, 16, 32, 256, 8, 512),
    "122B-A10B": (3072, 48, 0, 32, 2, 16, 64, 256, 8, 1024),
    "397B-A17B": (4096, 60, 0, 32, 2, 16, 64, 512, 10, 1024),
}
TIED = ("0.8B", "2B", "4B")


def released_metadata(name: str) -> dict[str, object]:
    """The metadata of a released model with one MTP block, as its GGUF has it."""
    h, blocks, ff, heads, kv_heads, k_heads, v_heads, experts, topk, expert_ff = RELEASED[name]
    arch = "qwen35moe" if experts else "qwen35"
    numbers = {
        "block_count": blocks + 1,
        "nextn_predict_layers": 1,
        "context_length": 262144,
        "embedding_length": h,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.group_count": k_heads,
        "ssm.time_step_rank": v_heads,
        "ssm.inner_size": v_heads * 128,
        "full_attention_interval": 4,
    }
    if experts:
        numbers |= {"expert_count": experts, "expert_used_count": topk}
        numbers |= {"expert_feed_forward_length": expert_ff}
        numbers |= {"expert_shared_feed_forward_length": expert_ff}
    else:
        numbers |= {"feed_forward_length": ff}
    metadata: dict[str, object] = {f"{arch}.{key}": value for key, value in numbers.items()}
    metadata["general.architecture"] = arch
    metadata["tokenizer.ggml.tokens"] = range(248320)
    return metadata


@pytest.fixture
def released() -> Callable[[str], tuple[dict[str, object], set[str]]]:
    """Metadata of a released model, and the tensor names that its configuration depends on."""

    def model(name: str) -> tuple[dict[str, object], set[str]]:
        head = set() if name in TIED else {"output.weight"}
        return released_metadata(name), {"blk.0.attn_norm.weight"} | head

    return model


# Byte offsets of the f16 factors in a block; the other types scale by a byte or are plain numbers.
F16_FIELDS = {
    (0,): "Q1_0 Q2_0 Q4_0 Q5_0 Q8_0 IQ4_NL IQ4_XS IQ1_S IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S F16",
    (0, 2): "Q4_1 Q5_1 Q4_K Q5_K Q8_1",
    (52,): "TQ1_0",
    (64,): "TQ2_0",
    (80, 82): "Q2_K",
    (108,): "Q3_K",
    (208,): "Q6_K",
}


@pytest.fixture
def random_blocks() -> Callable[..., np.ndarray]:
    """(n, block bytes) of random bytes of a type; ``scale`` puts its f16 factors in +-scale."""

    def blocks(ggml_type: GGMLType, n: int, scale: float | None = None) -> np.ndarray:
        rng = np.random.default_rng(ggml_type.value)
        made = rng.integers(0, 256, (n, BLOCK_SIZES[ggml_type].nbytes), dtype=np.uint8)
        fields = [at for at, names in F16_FIELDS.items() if ggml_type.name in names.split()]
        for at in fields[0] if fields and scale is not None else ():
            factors = rng.uniform(-scale, scale, n).astype(np.float16)
            made[:, at : at + 2] = factors.view(np.uint8).reshape(n, 2)
        if ggml_type is GGMLType.MXFP4 and scale is not None:
            made[:, 0] = rng.integers(120, 127, n)
        return made

    return blocks
