"""Every error a person can cause, as one tree. Each message is one line that names its object.

GgufHybridError
├── GGUFError            a file that cannot be used (names file, key or tensor)
├── ConfigError          a flag, variable or config file entry (names it)
├── BackendError         no usable MLX backend, or a missing accelerator
├── MemoryLimitError     a model or state pool that will not fit (with the numbers)
└── RequestError         one request; carries what llama-server puts into its error body
    ├── ContextOverflowError
    └── StepError        the engine failed this request only
"""


class GgufHybridError(Exception):
    """Base of all errors that are reported to a person as one line."""


class GGUFError(GgufHybridError):
    """A model file that is damaged, unsupported or not a model."""


class ConfigError(GgufHybridError):
    """A wrong flag, environment variable or configuration entry."""


class BackendError(GgufHybridError):
    """No usable compute backend."""


class MemoryLimitError(GgufHybridError):
    """Something would not fit into memory; the message carries the numbers."""


class RequestError(GgufHybridError):
    """A request that cannot be served.

    ``status`` is the HTTP status, ``kind`` llama-server's error type (contract, section 3.2),
    ``extra`` further keys of the error object.
    """

    status = 400
    kind = "invalid_request_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        kind: str | None = None,
        extra: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = self.status if status is None else status
        self.kind = self.kind if kind is None else kind
        self.extra = extra or {}


class ContextOverflowError(RequestError):
    """The prompt does not fit into one slot's context."""

    kind = "exceed_context_size_error"

    def __init__(self, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(
            f"request ({n_prompt_tokens} tokens) exceeds the available context size"
            f" ({n_ctx} tokens), try increasing it",
            extra={"n_prompt_tokens": n_prompt_tokens, "n_ctx": n_ctx},
        )


class StepError(RequestError):
    """The engine could not go on with this request; the others are unharmed."""

    status = 500
    kind = "server_error"
