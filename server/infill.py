"""``/infill``: text between a prefix and a suffix, for models with tokens for it.

Layout: [other files] <prefix token> prefix, prompt <suffix token> suffix <middle token>, or suffix
first (``--spm-infill``). Long parts are cut so that prefix and suffix fit into one batch in the
ratio 3:1, and other files into what is left of the context.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from gguf_hybrid.errors import RequestError
from gguf_hybrid.text.special_tokens import SpecialTokens
from gguf_hybrid.text.tokenizer import Tokenizer

from .answer import answer
from .completion import Completion, make_completions, own_grammar
from .context import Loaded, loaded
from .errors import not_supported
from .jsontext import parse_object, required, type_error
from .native import NativeAnswer
from .results import Json
from .routes import Route, post
from .schema import CompletionParams

_PROJECT = "myproject\n"
_CURRENT_FILE = "filename\n"
_UNNAMED = "tmp"
_SNIPPET = "\n\n--- snippet ---\n\n"
"""Between files, for vocabularies without a token for that."""


async def infill(request: web.Request) -> web.StreamResponse:
    model = loaded(request)
    _require_tokens(model.tokenizer.special)
    body = parse_object(await request.read())
    params, completions = await asyncio.to_thread(_prepare, model, body)
    return await answer(
        request,
        model.worker,
        [[choice.request for choice in completions]],
        NativeAnswer(model, completions),
        stream=params.stream,
        ping_interval=params.sse_ping_interval,
    )


def _require_tokens(special: SpecialTokens) -> None:
    roles = {"prefix": special.fim_pre, "suffix": special.fim_suf, "middle": special.fim_mid}
    missing = " ".join(f"{role} token is missing." for role, id in roles.items() if id is None)
    if missing:
        raise not_supported(f"Infill is not supported by this model: {missing}")


def _prepare(model: Loaded, body: Json) -> tuple[CompletionParams, list[Completion]]:
    extra = _extra(body.get("input_extra"))
    suffix, prefix = (_text(body, f"input_{part}") for part in ("suffix", "prefix"))
    prompt = body.get("prompt")
    params = model.schema.read(body)
    layout = Layout(
        n_batch=model.runtime.config.n_batch,
        n_predict=model.schema.defaults.n_predict,
        n_ctx=model.runtime.limits.n_ctx,
        suffix_first=model.config.spm_infill,
    )
    prompt = prompt if isinstance(prompt, str) else ""  # ignored otherwise, as in the reference
    ids = layout.ids(model.tokenizer, prefix, suffix, prompt, extra)
    grammar = own_grammar(model, params)
    (completions,) = make_completions(model, params, [ids], grammar=grammar, kind="infill")
    return params, completions


def _text(body: Json, key: str) -> str:
    value = required(body, key)
    if not isinstance(value, str):
        raise RequestError(type_error("string", value))
    return value


def _extra(extra: object) -> list[tuple[str, str]]:
    """(file name, text) of each entry."""
    if extra is None:
        return []
    if not isinstance(extra, list):
        raise RequestError('"input_extra" must be an array of {"filename": string, "text": string}')
    return [_extra_file(chunk) for chunk in extra]


def _extra_file(chunk: Any) -> tuple[str, str]:
    fields = chunk if isinstance(chunk, dict) else {}
    if not isinstance(text := fields.get("text"), str):
        raise RequestError('extra_context chunk must contain a "text" field with a string value')
    if not isinstance(name := fields.get("filename", _UNNAMED), str):
        raise RequestError('extra_context chunk\'s "filename" field must be a string')
    return name, text


@dataclass(frozen=True, slots=True)
class Layout:
    """What bounds the parts of an infill prompt; all in tokens."""

    n_batch: int
    n_predict: int
    n_ctx: int
    suffix_first: bool

    def ids(
        self,
        tokenizer: Tokenizer,
        prefix: str,
        suffix: str,
        prompt: str,
        extra: Sequence[tuple[str, str]],
    ) -> tuple[int, ...]:
        """The prompt's tokens. ``prompt`` is what was typed after the prefix already."""
        special = tokenizer.special
        assert special.fim_pre is not None and special.fim_suf is not None
        assert special.fim_mid is not None
        typed = tokenizer.encode(prompt)
        n_prefix = 3 * (self.n_batch // 4)
        n_suffix = max(0, self.n_batch // 4 - (2 + len(typed)))
        before = [special.fim_pre, *_last(_plain(tokenizer, prefix), n_prefix), *typed]
        after = [special.fim_suf, *_plain(tokenizer, suffix)[:n_suffix]]
        first, second = (after, before) if self.suffix_first else (before, after)
        n_extra = max(0, self.n_ctx - self.n_batch - 2 * self.n_predict)
        bos = tokenizer.encode("", add_special=True)
        files = _last(_files(tokenizer, extra), n_extra)
        return (*files, *bos, *first, *second, special.fim_mid)


def _files(tokenizer: Tokenizer, extra: Sequence[tuple[str, str]]) -> list[int]:
    """The other files, each under its name, then the name of the one that is filled in."""
    special = tokenizer.special
    ids: list[int] = []
    if special.fim_rep is not None:
        ids += [special.fim_rep, *_plain(tokenizer, _PROJECT)]
    for name, text in extra:
        if special.fim_sep is not None:
            ids += [special.fim_sep, *_plain(tokenizer, f"{name}\n")]
        else:
            ids += _plain(tokenizer, _SNIPPET)
        ids += _plain(tokenizer, text)
    if special.fim_sep is not None:
        ids += [special.fim_sep, *_plain(tokenizer, _CURRENT_FILE)]
    return ids


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Files are data: a tag in them is no token."""
    return tokenizer.encode(text, parse_special=False)


def _last(ids: list[int], n: int) -> list[int]:
    return ids[max(0, len(ids) - n) :]


ROUTES: tuple[Route, ...] = (post(infill, "/infill"),)
