"""Kernels against their references, on the file's own tensors.

A compiled product is compared with the decoded weights times the activations in float64; a
backend with plain MLX on the CPU, the reference of all backends. Building that one makes the CPU
MLX's default device, so it always comes last.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from gguf_hybrid.backend.base import Backend
from gguf_hybrid.backend.select import compiled_cpu, create_backend, own_cuda
from gguf_hybrid.cpu.library import Floats, Library, Mode, Pool, load
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.runtime_config import RuntimeConfig
from gguf_hybrid.weights.ggml import BLOCK_SIZES, GGMLType, row_nbytes
from gguf_hybrid.weights.quants import dequantize
from gguf_hybrid.weights.reader import TensorInfo

from .doctor_excerpt import Excerpt
from .doctor_laws import Sequences
from .doctor_report import Finding, judged

N_TENSORS = 4
N_ROWS = 64
N_PROMPT = 65
N_MORE = 3
FLOAT_TYPES = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})

PRODUCT_TOLERANCE = 2e-6
"""Of a product's error, relative to the sum of the absolute products."""
EXACT_TOLERANCE = 1e-2
"""Of a logit, in standard deviations of the logits: float32 in another order."""
FAST_TOLERANCE = 0.05
"""Mean Kullback-Leibler divergence in nats with 8-bit activations or a GPU's arithmetic."""


def compare_products(tensors: Iterable[TensorInfo], config: RuntimeConfig) -> Iterator[Finding]:
    """One finding a weight type: rows of some of its matrices, in both arithmetics."""
    if not compiled_cpu(config):
        yield Finding("products", "skipped", "the compiled CPU library does not compute here")
        return
    library = load()
    by_type: dict[GGMLType, list[TensorInfo]] = defaultdict(list)
    for tensor in tensors:
        if len(tensor.shape) > 1 and not tensor.name.endswith("ssm_conv1d.weight"):
            by_type[tensor.type].append(tensor)
    with Pool(library, 2) as pool:
        for ggml_type, group in sorted(by_type.items()):
            if ggml_type in library.types():
                yield _compare_type(pool, ggml_type, _spread(group))
            else:
                detail = "no kernel: decoded to float32 when the model is loaded"
                yield Finding(f"products, {ggml_type.name}", "skipped", detail)


def _spread(group: list[TensorInfo]) -> list[TensorInfo]:
    """Up to N_TENSORS of different sizes, from the smallest to the largest."""
    group = sorted(group, key=lambda t: (t.shape[-1], t.size, t.name))
    indices = np.linspace(0, len(group) - 1, min(N_TENSORS, len(group))).round().astype(int)
    return [group[i] for i in indices]


def _compare_type(pool: Pool, ggml_type: GGMLType, group: list[TensorInfo]) -> Finding:
    worst, n_rows, n_decoded_wrong = 0.0, 0, 0
    for i, tensor in enumerate(group):
        rows = _sampled_rows(tensor, np.random.default_rng(i))
        values = dequantize(rows.reshape(-1), ggml_type, (len(rows), tensor.shape[-1]))
        weight = pool.library.weight(ggml_type, rows, tensor.shape[-1])
        decoded = pool.dequantize_rows(weight, np.arange(len(rows)))
        n_decoded_wrong += int((decoded != values).any(axis=1).sum())
        worst = max(worst, _product_error(pool, ggml_type, rows, values))
        n_rows += len(rows)
    is_right = worst <= PRODUCT_TOLERANCE and not n_decoded_wrong
    detail = f"{n_rows} rows of {len(group)} tensors, largest relative error {worst:.1e}"
    if n_decoded_wrong:
        detail += f", {n_decoded_wrong} rows decoded differently"
    return judged(f"products, {ggml_type.name}", is_right, detail)


def _sampled_rows(tensor: TensorInfo, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Bytes of N_ROWS rows spread over the tensor, uint8 [rows, row bytes]."""
    rows = tensor.data.reshape(-1, row_nbytes(tensor.type, tensor.shape[-1]))
    picked = rng.choice(len(rows), min(N_ROWS, len(rows)), replace=False)
    return np.ascontiguousarray(rows[np.sort(picked)])


def _product_error(
    pool: Pool, ggml_type: GGMLType, rows: NDArray[np.uint8], values: Floats
) -> float:
    """Largest error of products with 1 and 5 rows of activations, in both arithmetics."""
    exact = values.astype(np.float64).T
    weight = pool.library.weight(ggml_type, rows, values.shape[1])
    worst = 0.0
    for m in (1, 5):
        x = np.random.default_rng(m).standard_normal((m, values.shape[1])).astype(np.float32)
        for mode in Mode:
            seen = _seen(pool.library, x, ggml_type, mode)
            (y,) = pool.matmul(mode, x, [weight])
            scale = np.abs(seen) @ np.abs(exact) + np.finfo(np.float32).tiny
            worst = max(worst, float((np.abs(y - seen @ exact) / scale).max()))
    return worst


def _seen(library: Library, x: Floats, ggml_type: GGMLType, mode: Mode) -> NDArray[np.float64]:
    """The activations that a product of this arithmetic multiplies."""
    if mode is Mode.EXACT or ggml_type in FLOAT_TYPES:
        return x.astype(np.float64)
    block = BLOCK_SIZES[ggml_type].length
    codes, scales = library.quantize_activations(x, block)
    steps = codes.reshape(*scales.shape, block).astype(np.float64) * scales[..., None]
    return np.asarray(steps).reshape(x.shape)


def compare_backends(excerpt: Excerpt, config: RuntimeConfig) -> Iterator[Finding]:
    """The backend in use, and the compiled library in exact arithmetic, against plain MLX."""
    logits = {}
    backend = create_backend(excerpt.config, config)
    name = backend.name
    logits[name] = _logits(excerpt, backend, "f16" if own_cuda(config) else "f32")
    del backend
    exact_name = ""
    if compiled_cpu(config):
        from gguf_hybrid.backend.cpu import CpuBackend

        with closing(CpuBackend(excerpt.config, arithmetic="exact")) as exact:
            exact_name = exact.name
            logits[exact_name] = _logits(excerpt, exact)
    reference = _logits(excerpt, _reference(excerpt))
    for each, values in logits.items():
        yield _compare_logits(each, values, reference, excerpt.note, is_exact=each == exact_name)


def _reference(excerpt: Excerpt) -> Backend:
    import mlx.core as mx

    from gguf_hybrid.backend.mlx import MlxBackend

    return MlxBackend(excerpt.config, mx.cpu)


def _logits(excerpt: Excerpt, backend: Backend, kv_type: str = "f32") -> Floats:
    """float32 [1 + N_MORE, n_vocab]: after a prompt of random tokens, and after each one more."""
    rng = np.random.default_rng(11)
    tokens = rng.integers(0, excerpt.config.n_vocab, N_PROMPT + N_MORE).tolist()
    sequences = Sequences(Qwen35(excerpt.config, excerpt.tensors, backend), 1, kv_type)
    read = sequences.feed((0, tokens[:N_PROMPT]))
    more = [sequences.feed((0, [t]), decoding=True)[0] for t in tokens[N_PROMPT:]]
    return np.stack([*read, *more])


def _compare_logits(
    name: str, values: Floats, reference: Floats, note: str, *, is_exact: bool
) -> Finding:
    deviation = float(np.abs(values - reference).max() / reference.std())
    divergence = float(_divergences(reference, values).mean())
    right = deviation <= EXACT_TOLERANCE if is_exact else divergence <= FAST_TOLERANCE
    detail = (
        f"{note}, {N_PROMPT} + {N_MORE} tokens: largest difference {deviation:.1e} deviations of"
        f" the logits, mean KL divergence {divergence:.1e}"
    )
    return judged(f"{name} against mlx (cpu)", right, detail)


def _divergences(p: Floats, q: Floats) -> NDArray[np.float64]:
    """KL(p || q) of each row of logits, in nats."""
    log_p, log_q = (_log_softmax(x.astype(np.float64)) for x in (p, q))
    return np.asarray((np.exp(log_p) * (log_p - log_q)).sum(axis=-1))


def _log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))
