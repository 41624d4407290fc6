"""Dense and expert feed-forward, embedding and logits against float64."""

from dataclasses import replace

import numpy as np
import pytest

from gguf_hybrid.backend.cpu import CpuBackend
from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import BackendError, GGUFError
from gguf_hybrid.memory.store import StoreSpec
from gguf_hybrid.step import Step
from gguf_hybrid.weights.ggml import GGMLType

from . import reference
from .step_models import (
    BASE,
    MOE,
    Arrays,
    Floats,
    delta_net_arrays,
    feed_forward_arrays,
    row,
    tensor,
    tensors,
)

CONFIGS = {
    "dense": BASE,
    "experts": MOE,
    "one expert": replace(MOE, n_expert_used=1),
    "all experts": replace(MOE, n_expert_used=9),
    "no shared expert": replace(MOE, n_ff_shexp=0),
    "scaled": replace(MOE, expert_weights_scale=2.5),
}


def arrays_of(c: ModelConfig) -> Arrays:
    rng = np.random.default_rng(5)
    return feed_forward_arrays(c, rng) | delta_net_arrays(c, rng)


def run(
    c: ModelConfig, arrays: Arrays, lengths: list[int], x: Floats, n_threads: int = 2
) -> Floats:
    backend = CpuBackend(c, n_threads, arithmetic="exact")
    block = backend.prepare_block(0, tensors(arrays))
    rows = [row(0, n, [i], -1, (i,)) for i, n in enumerate(lengths)]
    plan = backend.begin(Step(tuple(rows)), backend.new_store(StoreSpec(8, 8)))
    return backend.evaluate(backend.feed_forward(block, backend.load(x, plan), plan))


def inputs(n: int) -> Floats:
    return np.random.default_rng(6).normal(size=(n, BASE.n_embd)).astype(np.float32)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("n", [1, 2, 50])
def test_feed_forward_equals_float64(name: str, n: int) -> None:
    c, x = CONFIGS[name], inputs(n)
    arrays = arrays_of(c)
    expected = reference.feed_forward(c, arrays, x.astype(np.float64))
    assert np.abs(run(c, arrays, [n], x) - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.usefixtures("library")
def test_fused_gate_and_up_equal_separate_ones() -> None:
    x, arrays = inputs(9), arrays_of(MOE)
    separate = run(MOE, arrays, [9], x)
    parts = [arrays.pop(f"ffn_{name}_exps.weight") for name in ("gate", "up")]
    arrays["ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
    assert np.array_equal(run(MOE, arrays, [9], x), separate)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", ["dense", "experts"])
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_a_row_does_not_see_its_neighbours(name: str, n_threads: int) -> None:
    c, x, lengths = CONFIGS[name], inputs(30), [1, 1, 20, 8]
    arrays = arrays_of(c)
    together = run(c, arrays, lengths, x, n_threads)
    ends = np.cumsum(lengths)
    alone = [run(c, arrays, [n], x[end - n : end], 1) for n, end in zip(lengths, ends, strict=True)]
    assert np.array_equal(together, np.concatenate(alone))


@pytest.mark.usefixtures("library")
def test_embedding_and_logits_of_the_wanted_rows() -> None:
    rng = np.random.default_rng(8)
    table = rng.normal(size=(BASE.n_vocab, BASE.n_embd)).astype(np.float32)
    norm = rng.uniform(0.5, 1.5, BASE.n_embd).astype(np.float32)
    backend = CpuBackend(BASE, 2, arithmetic="exact")
    embedding = backend.prepare_embedding(tensor("token_embd.weight", table))
    head = backend.prepare_head(
        tensor("output_norm.weight", norm), tensor("token_embd.weight", table), embedding
    )
    rows = (row(10, 4, [0], -1, (0,), 2), row(3, 2, [1], -1, (1,), 0), row(7, 1, [2], -1, (2,), 1))
    step = Step(rows)
    plan = backend.begin(step, backend.new_store(StoreSpec(3, 3)))
    got = backend.logits(head, backend.embed(embedding, plan), plan)
    x = table[step.tokens[step.logit_index]].astype(np.float64)
    expected = reference.rms(x, norm.astype(np.float64), BASE.rms_eps) @ table.T.astype(np.float64)
    assert got.shape == (3, BASE.n_vocab)
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.usefixtures("library")
def test_held_logits_are_not_overwritten() -> None:
    backend = CpuBackend(BASE, 1)
    first = backend._logits_buffer(1)
    assert backend._logits_buffer(1) is not first
    address = backend._logits_buffer(1).ctypes.data
    assert backend._logits_buffer(1).ctypes.data == address


@pytest.mark.usefixtures("library")
def test_sizes_without_kernels_are_refused() -> None:
    with pytest.raises(BackendError, match="sizes of this model"):
        CpuBackend(replace(BASE, ssm_state_size=48), 1)
    backend, arrays = CpuBackend(BASE, 1), arrays_of(BASE)
    arrays["attn_qkv.weight"] = arrays["attn_qkv.weight"][:-1]
    with pytest.raises(BackendError, match="mixer of block 0"):
        backend.prepare_block(0, tensors(arrays))
    files = tensors(arrays_of(BASE))
    files["attn_norm.weight"] = replace(files["attn_norm.weight"], type=GGMLType.F16)
    with pytest.raises(GGUFError, match="attn_norm.weight is F16, expected F32"):
        backend.prepare_block(0, files)


@pytest.mark.usefixtures("library")
def test_weights_beside_the_file_are_counted_once() -> None:
    rng, backend = np.random.default_rng(9), CpuBackend(BASE, 1)
    arrays = delta_net_arrays(BASE, rng) | feed_forward_arrays(BASE, rng)
    backend.prepare_block(0, tensors(arrays))
    taps = arrays["ssm_conv1d.weight"].nbytes
    assert backend.weight_nbytes() == taps
    decoded = replace(tensor("token_embd.weight", arrays["attn_qkv.weight"][:320]), in_file=False)
    embedding = backend.prepare_embedding(decoded)
    backend.prepare_head(
        tensor("output_norm.weight", arrays["attn_norm.weight"]), decoded, embedding
    )
    assert backend.weight_nbytes() == taps + decoded.nbytes
