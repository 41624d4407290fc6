"""Settings from files, environment and command line, in that order: a later one wins.

Everything lands as ``section -> field -> value``; ``args`` makes the typed configuration of it.
Warnings are gathered, not printed: the log is not set up while arguments are still being read.
"""

import configparser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from gguf_hybrid.errors import ConfigError

from .flag_values import boolean
from .flags import Flag, Status
from .flags_model import MODEL_FLAGS
from .flags_sampling import SAMPLING_FLAGS
from .flags_server import SERVER_FLAGS
from .flags_speculative import SPECULATIVE_FLAGS

FLAGS: tuple[Flag, ...] = (*MODEL_FLAGS, *SERVER_FLAGS, *SAMPLING_FLAGS, *SPECULATIVE_FLAGS)

_ON = {name: flag for flag in FLAGS for name in flag.names}
_OFF = {name: flag for flag in FLAGS for name in flag.off}


@dataclass(slots=True)
class Settings:
    """Values by section and field, and what should be said about them."""

    sections: dict[str, dict[str, object]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def section(self, name: str) -> dict[str, object]:
        return self.sections.setdefault(name, {})

    def put(self, flag: Flag, values: Sequence[object]) -> None:
        """Store what ``values`` (all of one source, in order) say; raises what refuses the flag."""
        if flag.status is Status.REFUSED:
            raise ValueError(f"not supported: {flag.note}")
        if flag.status is Status.REMOVED:
            raise ValueError(f"the argument has been removed: {flag.note}")
        if flag.status is Status.IGNORED:
            if flag.note and values[-1] is not False:
                self.warnings.append(f"{flag.names[-1]} is ignored: {flag.note}")
            return
        self.section(flag.section)[flag.field] = list(values) if flag.collect else values[-1]


def read_files(settings: Settings, paths: Iterable[Path]) -> None:
    """llama.cpp's ``config.ini``: keys are flags without dashes, or variable names."""
    for path in paths:
        if path.is_file():
            _read_file(settings, path)


def read_environment(settings: Settings, environ: Mapping[str, str]) -> None:
    """``LLAMA_ARG_X``, and ``LLAMA_ARG_NO_X`` for what can be switched off."""
    for flag in FLAGS:
        for variable in flag.variables:
            if variable in environ:
                _read_variable(settings, flag, variable, environ[variable])
                break


def read_arguments(
    settings: Settings, arguments: Sequence[str], environ: Mapping[str, str]
) -> None:
    """The command line. ``_`` counts as ``-`` in long names; a value is a word of its own."""
    gathered: dict[Flag, list[object]] = {}
    seen: set[str] = set()
    rest = iter(arguments)
    for argument in rest:
        name = argument.replace("_", "-") if argument.startswith("--") else argument
        flag = _ON.get(name) or _OFF.get(name)
        if flag is None or flag.status is Status.REMOVED:
            hint = f" ({flag.note})" if flag else ""
            raise ConfigError(f"error: invalid argument: {argument}{hint}")
        if name in seen and not flag.collect:
            settings.warnings.append(f"{name} is given more than once, the last one counts")
        seen.add(name)
        try:
            gathered.setdefault(flag, []).append(_argument_value(flag, name, rest))
            settings.put(flag, gathered[flag])
        except ValueError as error:
            raise ConfigError(f'error while handling argument "{name}": {error}') from error
        if any(variable in environ for variable in flag.variables):
            settings.warnings.append(f"{flag.env} is set, but {name} on the command line counts")


def _argument_value(flag: Flag, name: str, rest: Iterator[str]) -> object:
    if flag.read is None:
        return name not in flag.off
    if name in flag.off:
        return False
    values = list(islice(rest, flag.n_values))
    if len(values) < flag.n_values:
        raise ValueError("expected value for argument")
    return flag.read(values[-1])


def _read_variable(settings: Settings, flag: Flag, name: str, text: str) -> None:
    try:
        if name == flag.off_env:
            settings.put(flag, [False])
        elif flag.read is not None:
            settings.put(flag, [flag.read(text)])
        elif flag.off:
            settings.put(flag, [boolean(text)])
        elif text in ("true", "1", "on", "enabled"):
            settings.put(flag, [True])
    except ValueError as error:
        raise ConfigError(f'error while handling environment variable "{name}": {error}') from error


def _read_file(settings: Settings, path: Path) -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False, default_section="\0")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        # Keys before the first section belong to the default one.
        parser.read_string(f"[default]\n{path.read_text(encoding='utf-8')}", str(path))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        first_line = str(error).splitlines()[0]
        raise ConfigError(f"config file {path}: {first_line}") from error
    for section in ("*", "default"):
        for key, text in parser[section].items() if parser.has_section(section) else ():
            _read_file_key(settings, path, key, text)


def _read_file_key(settings: Settings, path: Path, key: str, text: str) -> None:
    if key == "version":
        return
    spelled = key.replace("_", "-")
    names = (f"--{spelled}", f"-{spelled}")
    flag = next((_ON[name] for name in names if name in _ON), None)
    off = next((_OFF[name] for name in names if name in _OFF), None)
    by_env = next((f for f in FLAGS if f.env == key), None)
    try:
        if off is not None and flag is None:
            settings.put(off, [not boolean(text)])
        elif (found := flag or by_env) is not None:
            _put_file_value(settings, found, text)
        else:
            settings.warnings.append(f"config file {path}: '{key}' is unknown here, ignored")
    except ValueError as error:
        raise ConfigError(f"config file {path}: {key}: {error}") from error


def _put_file_value(settings: Settings, flag: Flag, text: str) -> None:
    if flag.read is not None:
        settings.put(flag, [flag.read(text)])
    elif boolean(text):
        settings.put(flag, [True])
    elif flag.off:
        settings.put(flag, [False])
