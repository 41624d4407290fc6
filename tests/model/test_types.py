"""Every ggml type loads and computes: a file of random blocks, on both exact backends."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf_hybrid.tools.gguf_writer import OutputFile, OutputTensor, write_files

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.model.qwen35 import load
from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType, row_nbytes
from gguf_hybrid.weights.layout import NO_WEIGHT_TYPES
from gguf_hybrid.weights.quants import dequantize
from gguf_hybrid.weights.reader import GGUFFile, TensorInfo, open_gguf

from .models import BACKENDS, EXACT, MOE, Sequence, advance, path_of, spec_for

TYPES = [t for t in GGMLType if t not in NO_WEIGHT_TYPES]
PROMPT = [5, 700, 12, 3000, 42, 77]
N_POOL = 4096


def sane_blocks(kind: GGMLType, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Random blocks whose weights are small: a model of them stays finite."""
    length, nbytes = BLOCK_SIZES[kind]
    if length == 1:
        values = rng.normal(0, 0.05, N_POOL)
        return {
            GGMLType.F64: values.astype("<f8"),
            GGMLType.F32: values.astype("<f4"),
            GGMLType.F16: values.astype("<f2"),
            GGMLType.BF16: (values.astype("<f4").view("<u4") >> 16).astype("<u2"),
        }[kind].view(np.uint8)
    blocks = rng.integers(0, 256, (40 * N_POOL, nbytes), dtype=np.uint8)
    weights = dequantize(blocks.reshape(-1), kind, (len(blocks), length))
    with np.errstate(all="ignore"):
        largest = np.abs(weights).max(axis=1)
    blocks = blocks[(largest > 0.02) & (largest < 0.3)]
    assert len(blocks) > 16, f"{kind.name}: random bytes give too few sane blocks"
    return blocks.reshape(-1)


def retyped(source: GGUFFile, kind: GGMLType, path: Path) -> Path:
    """The model with its matrices as random blocks of ``kind`` where the rows are long enough."""
    rng = np.random.default_rng(int(kind))
    pool = sane_blocks(kind, rng)
    length, nbytes = BLOCK_SIZES[kind]

    def output(tensor: TensorInfo) -> OutputTensor:
        matrix = len(tensor.shape) > 1 and not tensor.name.endswith(
            ("ssm_conv1d.weight", "_inp.weight")
        )
        if not matrix or tensor.shape[-1] % length:
            return OutputTensor(
                tensor.name, tensor.type, tensor.shape, lambda: [tensor.data.tobytes()]
            )
        n = row_nbytes(kind, tensor.shape[-1]) * int(np.prod(tensor.shape[:-1]))
        start = nbytes * int(rng.integers(0, 16))
        return OutputTensor(
            tensor.name, kind, tensor.shape, lambda: [np.resize(pool[start:], n).tobytes()]
        )

    tensors = [output(t) for t in source.tensors.values()]
    write_files([OutputFile(path, source.fields, tensors)], force=False)
    return path


@pytest.mark.parametrize("kind", TYPES, ids=lambda t: t.name)
def test_a_file_of_each_type_computes_alike_on_both_exact_backends(
    kind: GGMLType, tmp_path: Path
) -> None:
    path = retyped(open_gguf(path_of(MOE)), kind, tmp_path / "model.gguf")
    file = open_gguf(path)
    assert sum(t.type is kind for t in file.tensors.values()) > 8
    config = ModelConfig.from_metadata(file.metadata, file.tensors)
    logits = {}
    for name in EXACT:
        model = load(file, config, BACKENDS[name](config))
        store = model.new_store(spec_for(1, kv_type="f32"))
        seq = Sequence(0, (0, 1), [0, 1])
        (logits[name],) = advance(model, store, [(seq, PROMPT)])
        assert np.isfinite(logits[name]).all()
    scale = np.abs(logits["mlx"]).max()
    assert np.abs(logits["mlx"] - logits["cpu-exact"]).max() < 1e-3 * scale
