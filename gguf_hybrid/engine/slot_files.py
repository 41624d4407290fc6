"""Slot files: ``/slots/{id}?action=save|restore|erase`` (contract, 15).

The engine thread only copies between memory and host; packing, checksums and the disk are other
threads' work, so streams go on. A file is written beside its place and renamed, and a restore is
checked in full before the slot is touched: a failed one changes nothing.
"""

import asyncio
import logging
import os
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gguf_hybrid.errors import RequestError
from gguf_hybrid.memory.sequence_file import (
    SavedSequence,
    SequenceFileError,
    SequenceFormat,
    pack,
    unpack,
)

from .worker import Worker

logger = logging.getLogger(__name__)

MAX_NAME_NBYTES = 255
FORBIDDEN = frozenset('/\\:*?"<>|\x7f\u2215\u2216\uff0e\ufeff\ufffd')


@dataclass(frozen=True, slots=True)
class SlotFileReport:
    """What the answer shows: tokens and bytes moved, milliseconds taken."""

    n_tokens: int
    n_bytes: int
    ms: float


class SlotFiles:
    """The files of ``--slot-save-path``."""

    def __init__(self, folder: Path, layout: SequenceFormat, worker: Worker) -> None:
        self._folder = folder
        self._layout = layout
        self._worker = worker

    async def save(self, id_slot: int, filename: str) -> SlotFileReport:
        """Write what a slot holds, once it is free. RequestError for an empty slot (400), or if the
        disk refuses (500)."""
        began = time.perf_counter()
        path = self.path_of(filename)
        saved = await self._worker.call_when_idle(id_slot, lambda e: e.save_slot(id_slot))
        if not saved.tokens:
            raise RequestError("Unable to save slot: it is empty")
        try:
            n_bytes = await asyncio.to_thread(self._write, path, saved)
        except OSError as error:
            logger.warning("slot file %s: %s", filename, error)
            message = f"Unable to save slot: {error.strerror or error}"
            raise RequestError(message, status=500, kind="server_error") from error
        return SlotFileReport(len(saved.tokens), n_bytes, _ms_since(began))

    async def restore(self, id_slot: int, filename: str) -> SlotFileReport:
        """Put a saved sequence into a slot, once it is free. RequestError if it does not fit."""
        began = time.perf_counter()
        path = self.path_of(filename)
        try:
            saved, n_bytes = await asyncio.to_thread(self._read, path)
        except (OSError, SequenceFileError) as error:
            logger.warning("slot file %s: %s", filename, error)
            raise _unable() from error
        if not await self._worker.call_when_idle(id_slot, lambda e: e.load_slot(id_slot, saved)):
            logger.warning("slot file %s: no room for %d tokens", filename, len(saved.tokens))
            raise _unable()
        return SlotFileReport(len(saved.tokens), n_bytes, _ms_since(began))

    async def erase(self, id_slot: int) -> int:
        """Forget what a slot holds, once it is free; how many tokens that was."""
        return await self._worker.call_when_idle(id_slot, lambda e: e.erase_slot(id_slot))

    def path_of(self, filename: str) -> Path:
        """The file of that name in the folder; RequestError for a name that could lead elsewhere
        or that some system would change."""
        n_bytes = len(filename.encode(errors="surrogatepass"))
        bad_character = any(c < " " or "\x80" <= c <= "\x9f" or _is_surrogate(c) for c in filename)
        if (
            not 0 < n_bytes <= MAX_NAME_NBYTES
            or bad_character
            or not FORBIDDEN.isdisjoint(filename)
            or ".." in filename
            or filename[0] == " "
            or filename[-1] in " ."
        ):
            raise RequestError("Invalid filename")
        return self._folder / filename

    def _write(self, path: Path, saved: SavedSequence) -> int:
        """All of the file or nothing; a link of that name is replaced, not followed."""
        raw = pack(saved, self._layout)
        handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=".saving-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        return len(raw)

    def _read(self, path: Path) -> tuple[SavedSequence, int]:
        """Checked contents and size. Links are not followed, and only regular files are read."""
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SequenceFileError("not a regular file")
            raw = file.read()
        return unpack(raw, self._layout), len(raw)


def _is_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _ms_since(began: float) -> float:
    return 1000 * (time.perf_counter() - began)


def _unable() -> RequestError:
    return RequestError(
        "Unable to restore slot: No available space in KV cache or invalid slot save file"
    )
