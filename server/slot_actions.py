"""``POST /slots/{id}?action=save|restore|erase``: what a slot holds, to a file and back."""

import re

from aiohttp import web

from gguf_hybrid.engine.slot_files import SlotFiles
from gguf_hybrid.errors import RequestError

from .context import loaded
from .errors import json_response, unsupported
from .jsontext import parse_object, string
from .results import Json
from .routes import Route, post

_LEADING_NUMBER = re.compile(r"\s*([+-]?\d{1,20})")
_INT32 = 2**31


async def act(request: web.Request) -> web.Response:
    """Waits until the slot is free. ``id_slot`` of the answer is the number as asked."""
    files = loaded(request).slot_files
    if files is None:
        raise unsupported("slots action", "--slot-save-path")
    id_slot = _slot_id(request.match_info["id"])
    match request.query.get("action"):
        case "save":
            return json_response(await _save(files, id_slot, await _filename(request)))
        case "restore":
            return json_response(await _restore(files, id_slot, await _filename(request)))
        case "erase":
            return json_response({"id_slot": id_slot, "n_erased": await files.erase(id_slot)})
    raise RequestError("Invalid action")


async def _save(files: SlotFiles, id_slot: int, filename: str) -> Json:
    report = await files.save(id_slot, filename)
    return {
        "id_slot": id_slot,
        "filename": filename,
        "n_saved": report.n_tokens,
        "n_written": report.n_bytes,
        "timings": {"save_ms": report.ms},
    }


async def _restore(files: SlotFiles, id_slot: int, filename: str) -> Json:
    report = await files.restore(id_slot, filename)
    return {
        "id_slot": id_slot,
        "filename": filename,
        "n_restored": report.n_tokens,
        "n_read": report.n_bytes,
        "timings": {"restore_ms": report.ms},
    }


async def _filename(request: web.Request) -> str:
    return string(parse_object(await request.read()), "filename")


def _slot_id(text: str) -> int:
    """A 32-bit number at the beginning of ``text``: read as leniently as C does."""
    found = _LEADING_NUMBER.match(text)
    if found is None or not -_INT32 <= int(found[1]) < _INT32:
        raise RequestError("Invalid slot ID")
    return int(found[1])


ROUTES: tuple[Route, ...] = (post(act, "/slots/{id}"),)
