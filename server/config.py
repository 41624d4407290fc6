"""What the command line fixes for the HTTP side; the engine's part is ``RuntimeConfig``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gguf_hybrid.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsConfig:
    """``--cors-*``. ``origins`` is "*", "localhost", or a value sent back literally."""

    origins: str = "*"
    methods: str = "GET, POST, DELETE, OPTIONS"
    headers: str = "*"
    credentials: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """``--log-*`` and ``-v``. ``verbosity``: 1 errors, 2 warnings, 3 info, 4 and more debug."""

    disabled: bool = False
    file: str | None = None
    jsonl: bool = False
    prefix: bool = True
    timestamps: bool = True
    verbosity: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig:
    """Defaults of the chat routes. ``reasoning``: "on", "off" or "auto" (as the template does)."""

    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    reasoning_format: str = "deepseek"
    reasoning: str = "auto"
    reasoning_effort: str | None = None
    reasoning_budget: int = -1
    reasoning_budget_message: str = ""
    reasoning_preserve: bool = True
    prefill_assistant: bool = True
    skip_parsing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where the model comes from: one of a path, a Hugging Face repository, the embedded demo."""

    path: str | None = None
    hf_repo: str | None = None
    hf_file: str | None = None
    hf_token: str | None = None
    offline: bool = False
    demo: bool = False

    @property
    def given(self) -> bool:
        return self.demo or self.path is not None or self.hf_repo is not None

    @property
    def name(self) -> str:
        """The model's name when no alias is given: the repository, else the path as given."""
        return self.path or self.hf_repo or "gguf-hybrid-demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionConfig:
    """Google Cloud's prediction platform, which is configured by variables only."""

    health_route: str
    predict_route: str
    port: int

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "PredictionConfig | None":
        """None outside the platform."""
        if environ.get("AIP_MODE") != "PREDICTION":
            return None
        port = environ.get("AIP_HTTP_PORT", "8080")
        if not port.isdecimal() or not 0 <= int(port) <= 65535:
            raise ConfigError(f"AIP_HTTP_PORT: {port!r} is not a port")
        return cls(
            health_route=_rooted(environ.get("AIP_HEALTH_ROUTE", "")),
            predict_route=_rooted(environ.get("AIP_PREDICT_ROUTE") or "/predict"),
            port=int(port),
        )


def _rooted(route: str) -> str:
    return f"/{route}" if route and not route.startswith("/") else route


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """One server. ``request`` holds defaults by request field, as if a client had sent them."""

    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 8080
    reuse_port: bool = False
    api_keys: tuple[str, ...] = ()
    file_keys: tuple[str, ...] = ()
    api_prefix: str = ""
    ssl_key_file: str | None = None
    ssl_cert_file: str | None = None
    timeout: int = 3600
    queue_limit: int = 0
    metrics: bool = False
    slots: bool = True
    props: bool = False
    slot_save_path: str | None = None
    embd_normalize: int = 2
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    special: bool = False
    escape: bool = True
    spm_infill: bool = False
    ui: bool = True
    ui_settings: Mapping[str, object] = field(default_factory=dict)
    static_path: str | None = None
    cors: CorsConfig = field(default_factory=CorsConfig)
    log: LogConfig = field(default_factory=LogConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    source: ModelSource = field(default_factory=ModelSource)
    request: Mapping[str, object] = field(default_factory=dict)
    prediction: PredictionConfig | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.api_keys, *self.file_keys)

    @property
    def model_name(self) -> str:
        """The alphabetically first alias, else the source's name."""
        return min(self.aliases) if self.aliases else self.source.name
