"""The type of a command-line flag, and short ways to write one down.

The tables (``flags_model``, ``flags_server``, ``flags_sampling``, ``flags_speculative``) are data:
every flag of llama-server b11434, with its variable and what this server does with it. A flag that
would change answers is never dropped silently: it works, it is refused, or it is logged as ignored.
"""

from dataclasses import dataclass
from enum import StrEnum

from .flag_values import Reader, text


class Status(StrEnum):
    """What becomes of a flag; the words of ``docs/compatibility.md``."""

    WORKS = "works"
    IGNORED = "ignored"
    REFUSED = "refused"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    names    spellings that set it (or switch it on)
    target   "section.field" the value goes to, "" when nothing reads it
    read     turns the text into the value; None: a switch without value
    value    name of the value in the help
    env      full name of its environment variable
    off      spellings that switch it off
    collect  values of repeated use are gathered in a list
    n_values how many arguments follow
    note     why it is refused, or what a reader of the warning should know
    """

    names: tuple[str, ...]
    target: str = ""
    help: str = ""
    read: Reader | None = None
    value: str = ""
    env: str | None = None
    off: tuple[str, ...] = ()
    status: Status = Status.WORKS
    collect: bool = False
    n_values: int = 1
    note: str = ""

    @property
    def section(self) -> str:
        return self.target.partition(".")[0]

    @property
    def field(self) -> str:
        return self.target.partition(".")[2]

    @property
    def off_env(self) -> str | None:
        """``LLAMA_ARG_NO_X``, which switches the flag off whatever its value is."""
        if self.env is None or not self.off:
            return None
        return self.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_")

    @property
    def variables(self) -> tuple[str, ...]:
        """Its variables, the one that switches it off first."""
        return tuple(name for name in (self.off_env, self.env) if name is not None)


def _names(spellings: str) -> tuple[str, ...]:
    return tuple(spellings.split())


def _env(name: str | None) -> str | None:
    """``CTX_SIZE`` is short for ``LLAMA_ARG_CTX_SIZE``; a leading ``=`` marks a full name."""
    if name is None:
        return None
    return name[1:] if name.startswith("=") else f"LLAMA_ARG_{name}"


def value(
    names: str,
    target: str,
    read: Reader,
    shown: str,
    help: str,
    env: str | None = None,
    *,
    collect: bool = False,
) -> Flag:
    """A flag followed by a value."""
    return Flag(_names(names), target, help, read, shown, _env(env), collect=collect)


def switch(names: str, target: str, help: str, env: str | None = None, *, off: str = "") -> Flag:
    """A flag without value; with ``off`` it has negated spellings."""
    return Flag(_names(names), target, help, env=_env(env), off=_names(off))


def ignored(
    names: str,
    shown: str = "",
    env: str | None = None,
    *,
    read: Reader = text,
    off: str = "",
    note: str = "",
    n_values: int = 1,
) -> Flag:
    """Accepted without effect; with a ``note`` the log says so."""
    return Flag(
        _names(names),
        help="accepted without effect" + (f": {note}" if note else ""),
        read=read if shown else None,
        value=shown,
        env=_env(env),
        off=_names(off),
        status=Status.IGNORED,
        n_values=n_values,
        note=note,
    )


def refused(
    names: str, shown: str, note: str, env: str | None = None, *, n_values: int = 1, off: str = ""
) -> Flag:
    """Stops the program with a line that says why."""
    return Flag(
        _names(names),
        help=f"refused: {note}",
        read=text if shown else None,
        value=shown,
        env=_env(env),
        off=_names(off),
        status=Status.REFUSED,
        n_values=n_values,
        note=note,
    )


def removed(names: str, note: str, env: str | None = None, *, shown: str = "") -> Flag:
    """Gone from llama-server; the error names what took its place."""
    return Flag(
        _names(names),
        help=f"removed: {note}",
        read=text if shown else None,
        value=shown,
        env=_env(env),
        status=Status.REMOVED,
        note=note,
    )
