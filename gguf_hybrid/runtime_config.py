"""What the command line fixes before a model is loaded, in llama.cpp's parameter names.

Plain values, no MLX and no server: the argument parser makes one, ``gguf_hybrid.runtime`` reads it.
Values are as asked for; what they become (slots, context per slot, device) is decided at load time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

OverrideValue = int | float | bool | str
"""Value of one ``--override-kv`` entry, already of the type the entry names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """``--rope-*`` and ``--yarn-*``; None leaves the file's own value.

    ``scaling`` is "none", "linear" or "yarn"; ``scale`` expands the context by that factor
    (``freq_scale`` is its inverse and wins when both are given).
    """

    scaling: str | None = None
    scale: float | None = None
    freq_base: float | None = None
    freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """``--spec-*``. ``types`` is empty or holds names such as "draft-mtp"."""

    types: tuple[str, ...] = ()
    n_max: int = 3
    n_min: int = 0
    p_min: float = 0.0
    sampling: str = "greedy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """Everything the engine needs to load one model.

    model                  path of the GGUF (any shard)
    n_ctx                  total context, 0 = the model's training context
    n_parallel             slots, -1 = auto (4 and a unified pool)
    kv_unified             None = unified exactly when ``n_parallel`` is auto
    kv_unified_per_slot    cap of one slot's context, 0 = none
    n_batch, n_ubatch      tokens per iteration and per compute step
    cache_type_k/_v        ggml type names as given; unsupported ones are mapped by the runtime
    n_threads              CPU threads for steps of single tokens, -1 = chosen by the backend
    n_threads_batch        the same for prompts, -1 = n_threads
    arithmetic             "fast" (8-bit activations where llama.cpp has them) or "exact" (float32)
    n_gpu_layers           -1 = all that fit; 0 selects the CPU
    device                 "auto" or a device name of ``--list-devices``; "none" is the CPU
    fit                    shrink the context to the memory there is when ``n_ctx`` is 0
    fit_target_mib         memory left free when fitting
    cache_ram_mib          prompt cache, -1 = no limit, 0 = off
    ctx_checkpoints        checkpoints per slot, 0 = off
    embeddings             hidden states are given out
    pooling                "none", "mean", "cls" or "last"; None: as the file says, else "none"
    chat_template          template text that replaces the file's own
    slots_debug            ``/slots`` shows texts
    sleep_idle_seconds     unload the model after so long without work, negative = never
    override_kv            metadata keys to replace before anything reads them
    """

    model: str
    n_ctx: int = 0
    n_parallel: int = -1
    kv_unified: bool | None = None
    kv_unified_per_slot: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    cont_batching: bool = True
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    n_threads: int = -1
    n_threads_batch: int = -1
    arithmetic: str = "fast"
    n_gpu_layers: int = -1
    device: str = "auto"
    fit: bool = True
    fit_target_mib: int = 1024
    fit_ctx: int = 4096
    cache_ram_mib: int = 8192
    cache_idle_slots: bool = True
    ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192
    slot_prompt_similarity: float = 0.1
    rope: RopeConfig = field(default_factory=RopeConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    override_kv: Mapping[str, OverrideValue] = field(default_factory=dict)
    embeddings: bool = False
    pooling: str | None = None
    chat_template: str | None = None
    jinja: bool = True
    slots_debug: bool = False
    sleep_idle_seconds: float = -1
