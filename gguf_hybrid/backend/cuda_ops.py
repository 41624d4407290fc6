"""What decode steps and prompts have in common: launches of the shared kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

from gguf_hybrid.config import ModelConfig
from gguf_hybrid.metal.driver import Device
from gguf_hybrid.weights.ggml import GGMLType

from .cuda_kernels import Kernels, Scratch
from .cuda_store import CudaStore
from .cuda_weights import SUPERBLOCK, Matrix

RECORD_NBYTES = 40
"""A row's share of an activation record: 32 int8 codes, scale and sum (``metal/blocks.h``)."""
ROW_TILE = 32
"""Activation rows a matrix-vector kernel takes at most at a time; buffers hold whole tiles."""
NORM_LANES = 1024
"""Lanes that share one row of a norm: few rows, so as many as a threadgroup holds."""
NARROW = 4096
"""Up to so many outputs the columns of long rows are cut into more parts."""
DECODE_FLOAT_ROWS, PROMPT_FLOAT_ROWS = 2, 8
"""Rows of a float matrix that a threadgroup takes: a prompt fills the device by its rows of x."""
FLOAT_TYPES = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})


@dataclass(frozen=True, slots=True)
class Activations:
    """The same values [rows, k] as float32, as records and as f16; 0 where a form is not kept."""

    floats: int
    records: int
    halves: int
    k: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """Device addresses of what a run is told: tokens, state rows, KV cells, lengths, angles."""

    tokens: int
    read_rows: int
    write_rows: int
    cells: int
    lengths: int
    blocks: int
    cosines: int
    sines: int


@dataclass(frozen=True, slots=True)
class Experts:
    """Outputs of experts [rows, ranks, n_embd] that still have to join the residual stream, and
    their weights [rows, k_used + 1]."""

    routed: int
    weights: int
    ranks: int
    k_used: int


class Ops:
    """Launches over one scratch. ``rows`` of a run are decode rows, or the tokens of a prompt."""

    def __init__(
        self, device: Device, kernels: Kernels, config: ModelConfig, scratch: Scratch
    ) -> None:
        self.device, self.kernels, self.config, self.scratch = device, kernels, config, scratch

    def activations(self, name: str, rows: int, k: int, halves: bool) -> Activations:
        """Buffers for whole tiles of ``rows``."""
        rows = -(-rows // ROW_TILE) * ROW_TILE
        floats = self.scratch(f"{name}.floats", 4 * rows * k)
        records = self.scratch(f"{name}.records", rows * k // 32 * RECORD_NBYTES)
        return Activations(
            floats, records, self.scratch(f"{name}.halves", 2 * rows * k) if halves else 0, k
        )

    def floats(self, name: str, rows: int, k: int) -> int:
        return self.scratch(name, 4 * -(-rows // ROW_TILE) * ROW_TILE * k)

    def embed(self, embedding: Matrix, tokens: int, x: int, rows: int) -> None:
        run = self.kernels("embed", K=embedding.k, T0=embedding.type)
        run.launch((rows, 1, 1), 128, tokens, embedding.address, x)

    def norm(
        self, x: int, weight: int, y: Activations, rows: int, records: bool = True,
        joining: Experts | None = None,
    ) -> None:  # fmt: skip
        """The norm of x, after ``joining`` was added to it in place."""
        run = self.kernels(
            "norm",
            K=y.k,
            RECORDS=records,
            HALVES=bool(y.halves),
            LANES=NORM_LANES,
            RANKS=joining.ranks if joining else 0,
            K_USED=joining.k_used if joining else 0,
            EPS=self.config.rms_eps,
        )
        routed, weights = (joining.routed, joining.weights) if joining else (0, 0)
        run.launch(
            (rows, 1, 1), NORM_LANES, x, routed, weights, weight, x, y.floats, y.records, y.halves
        )  # fmt: skip

    def matvec(
        self,
        x: Activations,
        products: Sequence[tuple[Matrix, int]],
        rows: int,
        residual: int = 0,
        is_prompt: bool = False,
    ) -> None:
        """Each product's matrix times the rows of x, one launch; ``residual`` joins the first.

        A prompt's rows all take one variant of the kernel, however many there are.
        """
        tiles = 1 if is_prompt or rows <= 8 else 2 if rows <= 16 else 4
        float_rows = PROMPT_FLOAT_ROWS if is_prompt else DECODE_FLOAT_ROWS
        padded = [*products, *[(None, 0)] * (4 - len(products))]
        groups = sum(-(-m.n // (float_rows if m.type in FLOAT_TYPES else 16)) for m, _ in products)
        outputs = sum(m.n for m, _ in products)
        simds = 16 if outputs <= NARROW and x.k >= 16 * SUPERBLOCK and not is_prompt else 8
        run = self.kernels(
            "matvec",
            K=x.k,
            NT=tiles,
            FR=float_rows,
            SIMDS=simds,
            ADD=bool(residual),
            **{f"T{i}": int(m.type) if m else 0 for i, (m, _) in enumerate(padded)},
            **{f"N{i}": m.n if m else 0 for i, (m, _) in enumerate(padded)},
        )
        run.launch(
            (groups, -(-rows // (8 * tiles)), 1),
            32 * simds,
            x.records,
            x.floats,
            *(m.address if m else 0 for m, _ in padded),
            residual,
            *(y for _, y in padded),
            rows,
        )

    def rope_and_store(
        self, norms: tuple[int, int], qkv: tuple[int, int, int], q: int, run: Inputs,
        store: CudaStore, index: int, rows: int,
    ) -> None:  # fmt: skip
        c = self.config
        kernel = self.kernels(
            "rope_kv",
            D=c.head_dim,
            NH=c.n_head,
            NKV=c.n_head_kv,
            N_ROT=c.n_rot,
            BLOCK_STRIDE=store.block_halves,
            EPS=c.rms_eps,
        )
        kernel.launch(
            (c.n_head + c.n_head_kv, rows, 1), c.head_dim, *qkv, *norms, run.cosines, run.sines,
            run.cells, q, store.kv + 2 * index * store.layer_halves,
        )  # fmt: skip

    def attend_rows(
        self, q: int, qg: int, y: Activations, lengths: int, blocks: int, stride: int,
        store: CudaStore, index: int, rows: int, max_rows: int, splits: int, chunk: int,
    ) -> None:  # fmt: skip
        """Attention of ``rows`` queries over their own lengths; a block table every ``stride``. A
        split takes every ``splits``-th chunk of ``chunk`` keys."""
        c = self.config
        heads = rows * c.n_head
        parts = max_rows * c.n_head * splits
        partial, mass = (
            self.scratch("partial", 4 * parts * c.head_dim),
            self.scratch("mass", 8 * parts),
        )
        split = self.kernels(
            "attend_split",
            D=c.head_dim,
            NH=c.n_head,
            NKV=c.n_head_kv,
            S=splits,
            C=chunk,
            BLOCK_STRIDE=store.block_halves,
            SCALE=c.attention_scale,
        )
        split.launch(
            (splits, c.n_head_kv, rows), 256, q, store.kv + 2 * index * store.layer_halves,
            lengths, blocks, partial, mass, stride,
        )  # fmt: skip
        merge = self.kernels("attend_merge", D=c.head_dim, NH=c.n_head, S=splits)
        merge.launch((heads, 1, 1), c.head_dim, partial, mass, qg, y.floats, y.records)

    def top_experts(self, logits: int, shared: int, chosen: int, weights: int, rows: int) -> None:
        c = self.config
        run = self.kernels(
            "top_experts",
            E=c.n_expert,
            K_USED=c.n_expert_used,
            SHARED_GATE=bool(shared),
            W_SCALE=c.expert_weights_scale or 1.0,
        )
        run.launch((rows, 1, 1), 32, logits, shared, chosen, weights)

    def route(
        self, logits: int, shared: int, weights: int, groups: int, members: int, ranks: int,
        rows: int,
    ) -> None:  # fmt: skip
        """As ``top_experts``, with the rows of each expert instead of the experts of each row."""
        c = self.config
        run = self.kernels(
            "route", E=c.n_expert, K_USED=c.n_expert_used, RANKS=ranks, SHARED_GATE=bool(shared),
            W_SCALE=c.expert_weights_scale or 1.0,
        )  # fmt: skip
        lanes = max(32 * min(rows, 32), min(256, c.n_expert // 32 * 32))
        run.launch((1, 1, 1), lanes, logits, shared, weights, groups, members, rows)
