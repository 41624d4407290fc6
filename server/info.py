"""Routes that tell about the server: health, properties, models, slots, metrics.

None of them waits for the engine: they read what it last published.
"""

import time
from dataclasses import asdict

from aiohttp import web

from gguf_hybrid.engine.request import SlotView

from .context import BUILD_INFO, Context, Loaded, context_of, loaded
from .errors import json_response, unavailable, unsupported
from .metrics import CONTENT_TYPE, render
from .results import Json, generation_settings, slot_params
from .routes import Route, get, post
from .schema import CompletionParams

_GPT2_VOCAB = 2
"""llama.cpp's number for a byte-level BPE vocabulary."""


async def health(request: web.Request) -> web.Response:
    loaded(request)
    return json_response({"status": "ok"})


async def props(request: web.Request) -> web.Response:
    context = context_of(request)
    return json_response(_props(context, context.loaded()))


async def set_props(request: web.Request) -> web.Response:
    if not context_of(request).config.props:
        raise unsupported("changing global properties", "--props")
    return json_response({"success": True})


async def models(request: web.Request) -> web.Response:
    model = loaded(request)
    return json_response(
        {"models": [_ollama_entry(model)], "object": "list", "data": [_openai_entry(model)]}
    )


async def slots(request: web.Request) -> web.Response:
    if not context_of(request).config.slots:
        raise unsupported("slots endpoint", "--slots")
    model = loaded(request)
    views = model.worker.slots()
    if request.query.get("fail_on_no_slot") and all(view.is_processing for view in views):
        raise unavailable("no slot available")
    return json_response([_slot(model, view) for view in views])


async def metrics(request: web.Request) -> web.Response:
    context = context_of(request)
    if not context.config.metrics:
        raise unsupported("metrics endpoint", "--metrics")
    worker = context.loaded().worker
    counters = worker.counters()
    headers = {
        "Content-Type": CONTENT_TYPE,
        "Process-Start-Time-Unix": str(int(context.start_time)),
    }
    page = render(counters, context.rates.close(counters), worker.cache())
    return web.Response(body=page.encode(), headers=headers)


def _props(context: Context, model: Loaded) -> Json:
    config, runtime = context.config, model.runtime
    return {
        "default_generation_settings": {
            "params": _default_params(model),
            "n_ctx": runtime.limits.n_ctx,
        },
        "total_slots": runtime.limits.n_slots,
        "model_alias": model.model_name,
        "model_ftype": runtime.info.ftype,
        "model_path": runtime.info.path,
        "modalities": {"vision": False, "video": False, "audio": False},
        "media_marker": context.media_marker,
        "endpoint_slots": config.slots,
        "endpoint_props": config.props,
        "endpoint_metrics": config.metrics,
        "ui": config.ui,
        "ui_settings": dict(config.ui_settings),
        "chat_template": runtime.template.source,
        "chat_template_caps": asdict(runtime.template.caps),
        "bos_token": model.tokenizer.bos_text,
        "eos_token": model.tokenizer.eos_text,
        "build_info": BUILD_INFO,
        "is_sleeping": model.worker.is_sleeping,
        "cors_proxy_enabled": False,
    }


def _default_params(model: Loaded) -> Json:
    """What a request without fields would get; limits and formats at their neutral values."""
    params = CompletionParams(sampling=model.schema.defaults.sampling, reasoning_format="none")
    types = model.runtime.speculative_types
    return slot_params(generation_settings(params, model.tokenizer, types))


def _ollama_entry(model: Loaded) -> Json:
    return {
        "name": model.model_name,
        "model": model.model_name,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": ["completion"],
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "",
            "families": [""],
            "parameter_size": "",
            "quantization_level": "",
        },
    }


def _openai_entry(model: Loaded) -> Json:
    runtime = model.runtime
    return {
        "id": model.model_name,
        "aliases": sorted(model.config.aliases) or [model.model_name],
        "tags": list(model.config.tags),
        "object": "model",
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "created": int(time.time()),
        "owned_by": "llamacpp",
        "meta": {
            "vocab_type": _GPT2_VOCAB,
            "n_vocab": runtime.model_config.n_vocab,
            "n_ctx": runtime.limits.n_ctx,
            "n_ctx_train": runtime.model_config.n_ctx_train,
            "n_embd": runtime.model_config.n_embd,
            "n_params": runtime.info.n_params,
            "size": runtime.info.size,
            "ftype": runtime.info.ftype,
        },
    }


def _slot(model: Loaded, view: SlotView) -> Json:
    """Before its first task a slot has nothing to tell but its place."""
    shown: Json = {
        "id": view.id,
        "n_ctx": view.n_ctx,
        "speculative": model.runtime.speculative_types != "none",
        "is_processing": view.is_processing,
    }
    if view.params is None:
        return shown
    shown |= {
        "id_task": view.id_task,
        "n_prompt_tokens": view.n_prompt_tokens,
        "n_prompt_tokens_processed": view.n_prompt_tokens_processed,
        "n_prompt_tokens_cache": view.n_prompt_tokens_cache,
        "n_prompt_tokens_restored": view.n_prompt_tokens_restored,
        "n_prompt_tokens_reread": view.n_prompt_tokens_reread,
        "params": view.params,
        "next_token": [
            {
                "has_next_token": view.has_next_token,
                "has_new_line": view.has_new_line,
                "n_remain": view.n_remain,
                "n_decoded": view.n_decoded,
            }
        ],
    }
    if view.prompt or view.generated:  # others' texts are there only when asked for
        shown |= {"prompt": model.tokenizer.detokenize(view.prompt), "generated": view.generated}
    return shown


LOOKING = ("/health", "/v1/health", "/props", "/models", "/v1/models", "/metrics")
"""Paths that are answered from what is known while the model sleeps."""

ROUTES: tuple[Route, ...] = (
    get(health, "/health", "/v1/health"),
    get(props, "/props"),
    post(set_props, "/props"),
    get(models, "/models", "/v1/models"),
    get(slots, "/slots"),
    get(metrics, "/metrics"),
)
