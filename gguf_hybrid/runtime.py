"""The composition root: an opened file, its text side, its memory plan, and the engine thread.

``Runtime.load`` is two halves. The first reads and checks everything that needs no device, so that
a wrong file or flag ends the program in a line. The second runs on the engine thread, which builds
the backend and the model and then owns every array.
"""

import asyncio
import hashlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from gguf_hybrid.backend.select import (
    compiled_cpu,
    create_backend,
    free_memory,
    own_cuda,
    require_backend,
    wants_cpu,
)
from gguf_hybrid.config import ModelConfig, RopeScaling
from gguf_hybrid.cpu import library
from gguf_hybrid.engine.engine import Engine
from gguf_hybrid.engine.limits import Limits, share_context
from gguf_hybrid.engine.options import MIB, EngineOptions
from gguf_hybrid.engine.pooling import Pooling
from gguf_hybrid.engine.worker import LoadStopped, Worker
from gguf_hybrid.errors import ConfigError, GGUFError
from gguf_hybrid.fit import Demand, check_fits, demand_of, fitting_context, mlx_nbytes
from gguf_hybrid.keys import Keys
from gguf_hybrid.memory.sequence_file import SequenceFormat
from gguf_hybrid.model.qwen35 import Qwen35
from gguf_hybrid.runtime_config import RopeConfig, RuntimeConfig
from gguf_hybrid.sampling.vocab import SamplingVocab
from gguf_hybrid.step import BLOCK
from gguf_hybrid.text.template import ChatTemplate, without_jinja
from gguf_hybrid.text.tokenizer import Tokenizer
from gguf_hybrid.weights.decode import needs_decoding
from gguf_hybrid.weights.ftype import ftype_name
from gguf_hybrid.weights.layout import ModelTensors, check_tensors
from gguf_hybrid.weights.reader import GGUFFile, TensorInfo, open_gguf

log = logging.getLogger(__name__)

FILE_POOLING = tuple(Pooling)
"""By the ``pooling_type`` of a GGUF: llama.cpp numbers them in this order."""

N_RS_SEQ = 1
"""Tokens a sequence can be rolled back; one row more than that per sequence."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is told about the file. ``size`` is the bytes of its tensors."""

    path: str
    ftype: str
    n_params: int
    size: int


@dataclass(frozen=True)
class OpenModel:
    """A checked file, nothing of it decoded."""

    file: GGUFFile
    metadata: Mapping[str, Any]
    config: ModelConfig
    tensors: ModelTensors

    @classmethod
    def open(cls, config: RuntimeConfig) -> "OpenModel":
        """Raises GGUFError or ConfigError, one line."""
        file = open_gguf(config.model)
        source = str(file.path)
        metadata = {**file.metadata, **config.override_kv}
        model = ModelConfig.from_metadata(metadata, file.tensors, source)
        model = _stretched(model, config.rope)
        tensors = check_tensors(model, file.tensors, source)
        if "draft-mtp" in config.speculative.types and not tensors.mtp:
            raise ConfigError(f"--spec-type draft-mtp: {source} has no next-token (MTP) block")
        return cls(file, metadata, model, tensors)

    @property
    def info(self) -> ModelInfo:
        n_params = sum(t.size for t in self.file.tensors.values())
        return ModelInfo(str(self.file.path), ftype_name(self.metadata), n_params, self.file.nbytes)

    @property
    def fingerprint(self) -> str:
        """Names the model: its numbers, and where each tensor lies with its first bytes."""
        digest = hashlib.sha256(repr(self.config).encode())
        for name, tensor in sorted(self.file.tensors.items()):
            digest.update(f"{name} {tensor.type} {tensor.shape} ".encode())
            digest.update(tensor.data[:64].tobytes())
        return digest.hexdigest()


class Runtime:
    """A model being served: text tools for the event loop, and the worker that computes."""

    def __init__(self, opened: OpenModel, config: RuntimeConfig) -> None:
        self.config = config
        self.opened = opened
        self.metadata = opened.metadata
        self.model_config = opened.config
        self.info = opened.info
        self.jinja = config.jinja
        self.speculative_types = "none"
        self.pooling = _pooling(config, opened.metadata, opened.info.path)
        self.tokenizer = Tokenizer.from_metadata(opened.metadata)
        self.template = _template(self.tokenizer, config, opened.metadata)
        self.sampling_vocab = SamplingVocab(
            [self.tokenizer.token_bytes(i) for i in range(self.tokenizer.n_vocab)],
            self.tokenizer.eog_ids,
            lambda text: self.tokenizer.encode(text, parse_special=False),
        )
        self.limits = plan_memory(opened, config)
        self.cache_nbytes = cache_budget(opened, config, self.limits)

    @classmethod
    async def load(
        cls, config: RuntimeConfig, on_failure: Callable[[BaseException], None]
    ) -> "Runtime":
        """Open, check and load a model; ``on_failure`` is called if the engine dies later.

        Raises GgufHybridError for what the person who started it has to mend.
        """
        runtime = await asyncio.to_thread(cls._open, config)
        runtime.worker = Worker(
            runtime._build_engine, on_failure, sleep_idle_seconds=config.sleep_idle_seconds
        )
        runtime.worker.start()
        try:
            await runtime.worker.ready()
        except asyncio.CancelledError:
            runtime.worker.request_stop()
            raise
        return runtime

    @classmethod
    def _open(cls, config: RuntimeConfig) -> "Runtime":
        require_backend()
        return cls(OpenModel.open(config), config)

    worker: Worker

    async def close(self, timeout: float = 2.0) -> bool:
        """Stop the engine thread; False if it did not end in time."""
        return await self.worker.stop(timeout)

    def _build_engine(self, stopped: Callable[[], bool]) -> Engine:
        """On the engine thread."""
        began = time.perf_counter()
        backend = create_backend(self.model_config, self.config)
        with _LoadingBar(stopped) as progress:
            model = Qwen35(self.model_config, self.opened.tensors.trunk, backend, progress)
        engine = Engine(model, self.engine_options())
        store = engine.memory.store
        log.info(
            "%s: %d of %d layers recurrent, %.1f MiB of weights in memory, loaded in %.2f s",
            backend.name,
            len(self.model_config.delta_net_layers),
            self.model_config.n_layer,
            backend.weight_nbytes() / MIB,
            time.perf_counter() - began,
        )
        log.info(
            "state pool: %d rows of %.2f MiB = %.1f MiB; KV: %.2f KiB per token, up to %.1f MiB",
            store.spec.n_state_rows,
            self.model_config.state_nbytes / MIB,
            store.state_nbytes / MIB,
            store.block_nbytes / BLOCK / 1024,
            self.limits.n_blocks * store.block_nbytes / MIB,
        )
        return engine

    def engine_options(self) -> EngineOptions:
        config, limits = self.config, self.limits
        return EngineOptions(
            limits=limits,
            layout=self.sequence_format(),
            eog_ids=self.tokenizer.eog_ids,
            n_ubatch=config.n_ubatch,
            n_rs_seq=N_RS_SEQ,
            slot_prompt_similarity=config.slot_prompt_similarity,
            cache_ram_nbytes=self.cache_nbytes,
            ctx_checkpoints=config.ctx_checkpoints,
            checkpoint_min_step=config.checkpoint_min_step,
            cache_idle_slots=config.cache_idle_slots,
            slots_debug=config.slots_debug,
        )

    def sequence_format(self) -> SequenceFormat:
        """What a saved sequence of this model looks like."""
        return SequenceFormat.of(self.model_config, _kv_type(self.config), self.opened.fingerprint)


def plan_memory(opened: OpenModel, config: RuntimeConfig) -> Limits:
    """Slots and context. Without ``-c`` the context shrinks to the memory there is (``--fit``)."""
    model = opened.config

    def share(n_ctx: int) -> Limits:
        return share_context(
            n_ctx,
            config.n_parallel,
            bool(config.kv_unified),
            model.n_ctx_train,
            config.kv_unified_per_slot,
        )

    limits = share(config.n_ctx)
    demand = memory_demand(opened, config, limits.n_slots)
    free = free_memory(config)
    if config.n_ctx or not config.fit:
        check_fits(demand, limits.n_ctx_total, free)
        return limits
    left = free - config.fit_target_mib * MIB
    total = fitting_context(demand, limits.n_ctx_total, left, config.fit_ctx)
    if total < limits.n_ctx_total:
        log.info("-c is unset: context %d fitted to the free memory", total)
        limits = share(total)
    return limits


def cache_budget(opened: OpenModel, config: RuntimeConfig, limits: Limits) -> int | None:
    """``--cache-ram`` in bytes, None = no limit. A GPU keeps checkpoints in its own memory, so
    there it is at most what the model and its context leave."""
    asked = None if config.cache_ram_mib < 0 else config.cache_ram_mib * MIB
    if wants_cpu(config):
        return asked
    demand = memory_demand(opened, config, limits.n_slots)
    left = free_memory(config) - config.fit_target_mib * MIB - demand.total(limits.n_ctx_total)
    if asked is not None and asked <= left:
        return asked
    log.warning("--cache-ram: %d MiB are left for checkpoints on the GPU", max(left, 0) // MIB)
    return max(left, 0)


def memory_demand(opened: OpenModel, config: RuntimeConfig, n_slots: int) -> Demand:
    """What serving this model takes; mapped weights of the CPU backend are not counted."""
    trunk = opened.tensors.trunk.values()
    if compiled_cpu(config):
        weights = decoded_nbytes(trunk)
    elif own_cuda(config):
        weights = sum(tensor.nbytes for tensor in trunk)
    else:
        weights = mlx_nbytes(trunk)
    kv_type = _kv_type(config)
    return demand_of(opened.config, weights, n_slots, N_RS_SEQ, (kv_type, kv_type))


def decoded_nbytes(tensors: Iterable[TensorInfo]) -> int:
    """Bytes of weights that the compiled CPU backend decodes, having no kernel for their type."""
    kernel_types = library.load().types()
    return sum(4 * t.size for t in tensors if needs_decoding(t, kernel_types))


def list_devices() -> list[str]:
    """Names for ``--device``, with a word on each."""
    kind = require_backend()
    gpus = {"cuda": "own kernels on CUDA", "metal": "MLX and own kernels on Metal"}
    return ["cpu: the processor", *(f"gpu: {gpus[k]}" for k in (kind,) if k in gpus)]


def _kv_type(config: RuntimeConfig) -> str:
    if config.cache_type_k != config.cache_type_v:
        raise ConfigError("-ctk and -ctv must be the same type (f16 or f32)")
    if config.cache_type_k != "f16" and own_cuda(config):
        raise ConfigError(f"-ctk {config.cache_type_k}: the CUDA kernels keep KV as f16 only")
    return config.cache_type_k


def _pooling(config: RuntimeConfig, metadata: Mapping[str, Any], source: str) -> Pooling | None:
    """How embeddings are made; None when they are not asked for."""
    if not config.embeddings:
        return None
    if config.pooling is not None:
        return Pooling(config.pooling)
    keys = Keys(metadata, metadata["general.architecture"], source)
    return FILE_POOLING[keys.count("pooling_type", 0, low=0, high=len(FILE_POOLING) - 1)]


def _template(
    tokenizer: Tokenizer, config: RuntimeConfig, metadata: Mapping[str, Any]
) -> ChatTemplate:
    if not config.jinja:
        return without_jinja(config.chat_template or "chatml")
    of_file = metadata.get("tokenizer.chat_template", "")
    if not isinstance(of_file, str):
        raise GGUFError("tokenizer.chat_template: not a string")
    source = config.chat_template or of_file or "chatml"
    bos, eos = (
        "" if i is None else tokenizer.detokenize([i]) for i in (tokenizer.bos_id, tokenizer.eos_id)
    )
    return ChatTemplate(source, bos, eos, add_bos=tokenizer.add_bos)


def _stretched(model: ModelConfig, rope: RopeConfig) -> ModelConfig:
    """The model with ``--rope-*`` and ``--yarn-*`` applied; YaRN also makes the context longer."""
    if rope == RopeConfig():
        return model
    old = model.rope_scaling
    factor = 1.0 / rope.freq_scale if rope.freq_scale else (rope.scale or old.factor)
    kind = rope.scaling or (old.type if old.type != "none" or factor == 1.0 else "linear")
    original = rope.yarn_orig_ctx or old.original_context_length
    new = RopeScaling(
        type=kind,
        factor=factor if kind != "none" else 1.0,
        original_context_length=original,
        ext_factor=_given(rope.yarn_ext_factor, 1.0 if kind == "yarn" else 0.0),
        attn_factor=old.attn_factor,
        yarn_attn_factor=_given(rope.yarn_attn_factor, old.yarn_attn_factor),
        beta_fast=_given(rope.yarn_beta_fast, old.beta_fast),
        beta_slow=_given(rope.yarn_beta_slow, old.beta_slow),
    )
    n_ctx_train = int(original * factor) if kind == "yarn" else model.n_ctx_train
    base = _given(rope.freq_base, model.rope_freq_base)
    return replace(model, rope_scaling=new, rope_freq_base=base, n_ctx_train=n_ctx_train)


def _given(value: float | None, default: float) -> float:
    return default if value is None or value < 0 else value


class _LoadingBar:
    """A bar on a terminal while the model is loaded; ends that when the worker is stopped."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._bar = tqdm(
            total=100, desc="loading", unit="%", leave=False, disable=not sys.stderr.isatty()
        )

    def __enter__(self) -> Callable[[float], None]:
        return self._note

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def _note(self, fraction: float) -> None:
        if self._stopped():
            raise LoadStopped
        self._bar.update(int(100 * fraction) - self._bar.n)
