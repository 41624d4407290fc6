"""Which operations of the MLX backend are own Metal kernels, and whether they compute rightly here.

Defaults, from published figures, none measured on a Mac:

* ``matvec``, ``gate_up``, ``down``: where stock MLX reads at least ``WORTH`` times the bytes of
  the blocks, because single-row products run at the memory's speed in both (that is Q6_K, 14 bits a
  weight as affine matrices against 7; MLX's affine 4-bit product is known to be good, so Q4_K stays
  there).
* ``delta_step``: where ``mx.fast.gated_delta_update`` has no kernel for the head counts.
* ``attend``: own, because the stock form copies the keys and values of a sequence in every step.
* ``top_experts``: own, one launch for eight.

Since no Mac has run them, every chosen kernel is compared with its stock form on small random data
before weights are loaded. One that fails is left to stock MLX with a warning, or is an error if it
was asked for by name.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.errors import BackendError
from gguf_hybrid.metal.apple import Kernels
from gguf_hybrid.step import BLOCK
from gguf_hybrid.weights.ggml import GGMLType
from gguf_hybrid.weights.random_tensor import random_tensor
from gguf_hybrid.weights.reader import TensorInfo
from gguf_hybrid.weights.repack import layout_of

from .kernel_choice import OPERATIONS, SWITCHES, VARIABLE, KernelChoice
from .mlx_linear import linear_of
from .mlx_own import (
    SUPERBLOCK_NBYTES,
    OwnOperations,
    RawLinear,
    attends,
    is_covered,
    raw_of,
    steps,
)
from .mlx_stock import DeltaWeights, StockOperations, has_fused_delta

log = logging.getLogger(__name__)

WEIGHTED = ("matvec", "gate_up", "down")
WORTH = 1.5
TOLERANCE = 1e-4
"""Of a check, relative to the largest value: float32 sums in another order."""
STACKS = {
    "gate_up": ("ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_gate_up_exps.weight"),
    "down": ("ffn_down_exps.weight",),
}


@dataclass(frozen=True, slots=True)
class OwnKernels:
    """``names`` of the own operations, with the weight types they take where they read weights."""

    names: frozenset[str] = frozenset()
    types: Mapping[str, frozenset[GGMLType]] = field(default_factory=dict)

    def takes(self, name: str, tensor: TensorInfo) -> bool:
        """Whether the weight is kept as blocks for the own kernel ``name``."""
        wanted = name in self.names and tensor.type in self.types[name]
        return wanted and is_covered(tensor)

    def stacks(self, tensors: Mapping[str, TensorInfo]) -> set[str]:
        """Names of the expert stacks kept as blocks; gate and up go together."""
        found: set[str] = set()
        for operation, names in STACKS.items():
            present = [n for n in names if n in tensors]
            if all(self.takes(operation, tensors[n]) for n in present):
                found.update(present)
        return found

    def paths(self) -> dict[str, str]:
        """The path of each operation, for the start-up log."""
        return {name: self._path(name) for name in OPERATIONS}

    def _path(self, name: str) -> str:
        if name == "sample":
            return "CPU"
        if name not in self.names:
            return "stock MLX"
        if name not in WEIGHTED or len(self.types[name]) == len(SUPERBLOCK_NBYTES):
            return "own kernel"
        types = ", ".join(sorted(t.name for t in self.types[name]))
        return f"own kernel for {types}, else stock MLX"


def resolve(choice: KernelChoice, config: ModelConfig) -> OwnKernels:
    """The own operations that a choice means for this model, before any check."""
    covered = dict.fromkeys(SWITCHES, True) | {"delta_step": steps(config)}
    covered["attend"] = attends(config, "f16")
    for name in ("gate_up", "down", "top_experts"):
        covered[name] = bool(config.n_expert)
    default = dict.fromkeys(SWITCHES, True) | {"delta_step": not has_fused_delta(config)}
    names = {n for n in SWITCHES if covered[n] and choice.wants(n, default[n])}
    types = {n: _types(choice.asked(n)) for n in WEIGHTED}
    return OwnKernels(frozenset(names), types)


def _types(every: bool) -> frozenset[GGMLType]:
    """Weight types of an own product: all that it can read, or those where it must win."""
    return frozenset(
        t for t, nbytes in SUPERBLOCK_NBYTES.items()
        if every or layout_of(t).bits_per_weight() >= WORTH * nbytes / 32
    )  # fmt: skip


def checked(
    choice: KernelChoice | None,
    config: ModelConfig,
    stock: StockOperations,
    own: OwnOperations,
    kernels: Kernels,
) -> OwnKernels:
    """The own operations that agree with their stock forms here. Raises BackendError if one that
    was named does not."""
    if choice is None:
        return OwnKernels()
    wanted = resolve(choice, config)
    right = set()
    for name in sorted(wanted.names):
        try:
            problem = _problem(_cases(name, wanted, config, stock, own, kernels))
        except (RuntimeError, ValueError) as error:
            problem = f"does not run here: {str(error).splitlines()[0]}"
        if not problem:
            right.add(name)
        elif choice.asked(name):
            raise BackendError(f"{VARIABLE}: the own kernel {name} {problem}")
        else:
            log.warning("the own kernel %s %s: stock MLX takes its place", name, problem)
    return OwnKernels(frozenset(right), wanted.types)


Case = Callable[[], tuple[mx.array, mx.array]]
"""Results of the own kernel and of its stock form."""


def _problem(cases: Iterable[Case]) -> str:
    for case in cases:
        got, expected = (np.array(a, np.float32) for a in case())
        error = np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-30)
        if not error < TOLERANCE:
            return f"differs from stock MLX by {error:.1e} of the largest value"
    return ""


def _cases(
    name: str, wanted: OwnKernels, c: ModelConfig, stock: StockOperations, own: OwnOperations,
    kernels: Kernels,
) -> Iterator[Case]:  # fmt: skip
    rng = np.random.default_rng(3)
    if name == "matvec":
        for ggml_type in sorted(wanted.types[name]):
            for n_rows in (1, 3):
                yield lambda t=ggml_type, n=n_rows: _products(t, n, rng, kernels)  # type: ignore[misc]
    elif name in STACKS:
        for ggml_type in sorted(wanted.types[name]):
            yield lambda t=ggml_type: _experts(name, t, c, rng, stock, own)  # type: ignore[misc]
    elif name == "top_experts":
        logits = _normal(rng, 2, c.n_expert)
        yield lambda: (own.top_experts(logits)[1], stock.top_experts(logits)[1])
    elif name == "delta_step":
        inputs = _delta_inputs(rng, c)
        for part in range(3):
            yield lambda i=part: (own.delta_step(*inputs)[i], stock.delta_step(*inputs)[i])  # type: ignore[misc]
    else:
        assert name == "attend"
        q = _normal(rng, c.n_head, c.head_dim)
        shape = (BLOCK, c.n_head_kv, c.head_dim)
        cache = [[_normal(rng, *shape).astype(mx.float16) for _ in range(2)] for _ in range(2)]
        for length in (1, BLOCK + 1):
            args = (q, *(blocks[: -(-length // BLOCK)] for blocks in cache), length)
            yield lambda a=args: (own.attend(*a), stock.attend(*a))  # type: ignore[misc]


def _products(
    ggml_type: GGMLType, n_rows: int, rng: np.random.Generator, kernels: Kernels
) -> tuple[mx.array, mx.array]:
    tensor = random_tensor("check", ggml_type, (20, 512), rng)
    x = _normal(rng, n_rows, 512)
    return RawLinear(kernels, raw_of(tensor))(x), linear_of(tensor)(x)


def _experts(
    name: str, ggml_type: GGMLType, c: ModelConfig, rng: np.random.Generator,
    stock: StockOperations, own: OwnOperations,
) -> tuple[mx.array, mx.array]:  # fmt: skip
    """Two tokens, three experts of 256 by 256, two of them chosen."""
    chosen = mx.array([[2, 0], [0, 1]], mx.int32)
    first, second = (random_tensor("check", ggml_type, (3, 256, 256), rng) for _ in range(2))
    if name == "gate_up":
        y = _normal(rng, 2, 256)
        got = own.gate_up(y, chosen, raw_of(first), raw_of(second))
        return got, stock.gate_up(y, chosen, linear_of(first), linear_of(second))
    h, weights = _normal(rng, 2, 2, 256), mx.array([[0.7, 0.3], [0.4, 0.6]])
    got = own.down(h, chosen, weights, raw_of(first))
    return got, stock.down(h, chosen, weights, linear_of(first))


def _delta_inputs(
    rng: np.random.Generator, c: ModelConfig
) -> tuple[mx.array, mx.array, mx.array, DeltaWeights, mx.array, mx.array]:
    heads, size = c.ssm_time_step_rank, c.ssm_state_size
    weights = DeltaWeights(
        _normal(rng, c.conv_dim, c.ssm_conv_kernel),
        _normal(rng, heads),
        -mx.exp(_normal(rng, heads)),
    )
    conv = _normal(rng, 2, c.ssm_conv_kernel - 1, c.conv_dim)
    return (
        _normal(rng, 2, c.conv_dim), _normal(rng, 2, heads), _normal(rng, 2, heads), weights, conv,
        _normal(rng, 2, heads, size, size),
    )  # fmt: skip


def _normal(rng: np.random.Generator, *shape: int) -> mx.array:
    return mx.array(rng.standard_normal(shape, np.float32))
