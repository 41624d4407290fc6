"""The command line of llama-server, made into typed configuration.

``parse`` is a function of its arguments alone (words, environment, home), prints nothing and starts
nothing; ``__main__`` acts on the result. Errors are one line each, as ConfigError.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from gguf_hybrid.errors import ConfigError
from gguf_hybrid.runtime_config import RopeConfig, RuntimeConfig, SpeculativeConfig

from .config import (
    ChatConfig,
    CorsConfig,
    LogConfig,
    ModelSource,
    PredictionConfig,
    ServerConfig,
)
from .flag_values import unescape
from .flags import Flag, Status
from .settings import FLAGS, Settings, read_arguments, read_environment, read_files

PROGRAM = "gguf-hybrid-server"
_STORED_KV_TYPES = ("f32", "f16")
_VERBOSE_ANSWERS = 9
"""Above this log verbosity every answer has ``__verbose``, as if it were asked for."""
_DEFAULT_DRAFTING = ("ngram-mod",)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What to do: ``action`` is "" to serve, else the name of a print-and-exit flag.

    ``runtime.model`` is still empty: finding the model may need a download and is done later.
    """

    action: str
    server: ServerConfig
    runtime: RuntimeConfig
    warnings: tuple[str, ...]


def parse(
    words: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    demo_without_model: bool = False,
) -> Arguments:
    """Read configuration files, variables and ``words`` (without the program's name)."""
    environ = os.environ if environ is None else environ
    settings = Settings()
    read_files(settings, config_files(environ))
    read_environment(settings, environ)
    read_arguments(settings, words, environ)
    action = next(iter(settings.section("action")), "")
    server = _server_config(settings)
    if demo_without_model and not server.source.given:
        server = replace(server, source=replace(server.source, demo=True))
    if not action and not server.source.given:
        raise ConfigError(
            "error: no model: give a file with -m FILE, a repository with -hf USER/REPO,"
            " or --demo for the embedded one"
        )
    if (prediction := PredictionConfig.from_environment(environ)) is not None:
        server = replace(server, prediction=prediction, port=prediction.port)
    runtime = _runtime_config(settings, environ)
    return Arguments(action, server, runtime, tuple(settings.warnings))


def config_files(environ: Mapping[str, str]) -> list[Path]:
    """System file first, the user's second: the later one wins."""
    files = [Path("/etc/llama.cpp/config.ini")]
    home = environ.get("XDG_CONFIG_HOME") or (
        environ.get("HOME", "") and environ["HOME"] + "/.config"
    )
    return [*files, Path(home) / "llama.cpp" / "config.ini"] if home else files


def usage() -> str:
    """The text of ``--help``: one line per flag."""
    shown = [flag for flag in FLAGS if flag.status is not Status.REMOVED]
    lines = [f"usage: {PROGRAM} -m FILE [flags]", ""]
    return "\n".join([*lines, *(_usage_line(flag) for flag in shown)])


def bash_completion() -> str:
    names = " ".join(name for flag in FLAGS for name in (*flag.names, *flag.off))
    return f'complete -o default -W "{names}" {PROGRAM}'


def _usage_line(flag: Flag) -> str:
    spelled = ", ".join((*flag.names, *flag.off))
    head = f"  {spelled} {flag.value}".rstrip()
    env = f" [{flag.env}]" if flag.env else ""
    return f"{head:<44} {flag.help}{env}"


def _server_config(settings: Settings) -> ServerConfig:
    log = settings.section("log")
    if log.pop("verbose", False):
        log["verbosity"] = 2**31 - 1
    request = settings.section("request")
    if cast(int, log.get("verbosity", 0)) > _VERBOSE_ANSWERS:
        request.setdefault("verbose", True)
    server = ServerConfig(
        **settings.section("server"),  # type: ignore[arg-type]
        cors=CorsConfig(**settings.section("cors")),  # type: ignore[arg-type]
        log=LogConfig(**log),  # type: ignore[arg-type]
        chat=ChatConfig(**settings.section("chat")),  # type: ignore[arg-type]
        source=ModelSource(**settings.section("model")),  # type: ignore[arg-type]
        request=request,
    )
    if server.escape:
        for name in ("stop", "dry_sequence_breakers"):
            if isinstance(words := request.get(name), list):
                request[name] = [unescape(word) for word in words]
    if (server.ssl_key_file is None) != (server.ssl_cert_file is None):
        raise ConfigError("error: --ssl-key-file and --ssl-cert-file belong together")
    return server


def _runtime_config(settings: Settings, environ: Mapping[str, str]) -> RuntimeConfig:
    runtime = settings.section("runtime")
    for name in ("cache_type_k", "cache_type_v"):
        if runtime.get(name, "f16") not in _STORED_KV_TYPES:
            flag = "--" + name.replace("_", "-")
            settings.warnings.append(f"{flag} {runtime[name]}: stored as f16")
            runtime[name] = "f16"
    return RuntimeConfig(
        model="",
        slots_debug=bool(environ.get("LLAMA_SERVER_SLOTS_DEBUG")),
        **runtime,  # type: ignore[arg-type]
        rope=RopeConfig(**settings.section("rope")),  # type: ignore[arg-type]
        speculative=_speculative_config(settings),
    )


def _speculative_config(settings: Settings) -> SpeculativeConfig:
    spec = settings.section("spec")
    if spec.pop("default", False):
        spec.setdefault("types", _DEFAULT_DRAFTING)
    types = spec.get("types", ())
    assert isinstance(types, tuple)
    if "draft-mtp" in types:
        settings.warnings.append("--spec-type draft-mtp: serves without drafting")
    ngrams = [name for name in types if name.startswith("ngram-")]
    if ngrams:
        settings.warnings.append(f"--spec-type {','.join(ngrams)}: serves without drafting")
        spec["types"] = tuple(name for name in types if name not in ngrams)
    return SpeculativeConfig(**spec)  # type: ignore[arg-type]
