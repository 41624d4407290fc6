"""The tokenizer of a checkpoint as GGUF metadata.

The pre-tokenizer is named after the regex in tokenizer.json. llama.cpp instead hashes the ids of
one test string, which fails for every retrained vocabulary although the splitting is the same.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gguf_hybrid.errors import ConfigError
from gguf_hybrid.text.vocabulary import PRE_TOKENIZERS, TokenType
from gguf_hybrid.weights.metadata import Field, ValueType

from .convert_checkpoint import malformed, read_json

SPECIAL_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",
    "pad": "padding_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
}
ADD_KEYS = ("bos", "eos", "sep")
MAX_VOCAB = 1 << 24


def string_array(values: list[str]) -> Field:
    """A string array that is not from a file."""
    return Field(np.array(values, dtype=object), ValueType.ARRAY, ValueType.STRING)


def vocab_fields(path: Path, model_config: Mapping[str, Any]) -> dict[str, Field]:
    """``tokenizer.*`` metadata of the checkpoint at ``path`` with the given config.json.

    Keys are in llama.cpp's order.

    Raises ConfigError if the tokenizer is not one of this model family, GGUFError if one of its
    files holds a value where another kind is expected.
    """
    with malformed(path, "tokenizer.json or tokenizer_config.json"):
        return _vocab_fields(path, model_config)


def _vocab_fields(path: Path, model_config: Mapping[str, Any]) -> dict[str, Field]:
    tokenizer = read_json(path / "tokenizer.json")
    config_path = path / "tokenizer_config.json"
    config = read_json(config_path) if config_path.is_file() else {}
    added = _added_tokens(tokenizer, config)
    text_config = model_config.get("text_config", model_config)
    tokens, types = _tokens(path, tokenizer, added, text_config.get("vocab_size"))
    fields = {
        "model": Field("gpt2", ValueType.STRING),
        "pre": Field(pre_tokenizer(path, tokenizer), ValueType.STRING),
        "tokens": string_array(tokens),
        "token_type": Field(np.array(types, np.int32), ValueType.ARRAY, ValueType.I32),
        "merges": string_array(_merges(path, tokenizer)),
    }
    fields |= _special_ids(config, [model_config, text_config], added)
    fields |= _add_flags(path, tokenizer, config)
    named = {f"tokenizer.ggml.{key}": field for key, field in fields.items()}
    return named | _chat_templates(path, config)


def pre_tokenizer(path: Path, tokenizer: Mapping[str, Any]) -> str:
    """llama.cpp's name of the splitting regex in tokenizer.json."""
    step = tokenizer.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    found = [s.get("pattern", {}).get("Regex") for s in steps if s.get("type") == "Split"]
    for name, regex in PRE_TOKENIZERS.items():
        if found == [regex]:
            return name
    kinds = ", ".join(str(s.get("type")) for s in steps)
    what = f"the regex {found[0]!r}" if found else f"the steps {kinds}"
    raise ConfigError(f"{path / 'tokenizer.json'}: unknown pre-tokenizer: {what}")


def _added_tokens(
    tokenizer: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[int, dict[str, Any]]:
    added = {int(i): t for i, t in config.get("added_tokens_decoder", {}).items()}
    return added | {int(t["id"]): t for t in tokenizer.get("added_tokens", [])}


def _tokens(
    path: Path,
    tokenizer: Mapping[str, Any],
    added: Mapping[int, Mapping[str, Any]],
    vocab_size: int | None,
) -> tuple[list[str], list[int]]:
    model = tokenizer.get("model", {})
    if model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise ConfigError(f"{path / 'tokenizer.json'}: model {model.get('type')} is not BPE")
    texts = {token_id: text for text, token_id in model["vocab"].items()}
    largest = max([*texts, *added])
    n_vocab = largest + 1 if vocab_size is None else vocab_size
    if n_vocab > MAX_VOCAB:
        raise ConfigError(f"{path / 'config.json'}: vocab_size is {n_vocab}, above {MAX_VOCAB}")
    if largest >= n_vocab:
        raise ConfigError(
            f"{path / 'tokenizer.json'}: id {largest} is outside vocab_size {n_vocab}"
        )
    tokens: list[str] = []
    types: list[int] = []
    for i in range(n_vocab):
        if i in added:
            tokens.append(added[i]["content"])
            types.append(_added_type(added[i]))
        else:
            tokens.append(texts.get(i, f"[PAD{i}]"))
            types.append(TokenType.NORMAL if i in texts else TokenType.UNUSED)
    return tokens, types


def _added_type(token: Mapping[str, Any]) -> TokenType:
    text = token["content"]
    looks_special = text.startswith("<|") and text.endswith("|>")
    special = token.get("special") or looks_special
    return TokenType.CONTROL if special else TokenType.USER_DEFINED


def _merges(path: Path, tokenizer: Mapping[str, Any]) -> list[str]:
    """One "left right" string a merge; a space inside a part is written as Ġ."""
    merges = tokenizer["model"].get("merges")
    if not merges:
        raise ConfigError(f"{path / 'tokenizer.json'}: has no merges")
    return [
        m if isinstance(m, str) else " ".join(part.replace(" ", "Ġ") for part in m) for m in merges
    ]


def _special_ids(
    config: Mapping[str, Any],
    model_configs: Sequence[Mapping[str, Any]],
    added: Mapping[int, Mapping[str, Any]],
) -> dict[str, Field]:
    """Token ids by role: what tokenizer_config.json names first, then plain ids of config.json."""
    by_text = {token["content"]: token_id for token_id, token in added.items()}
    ids: dict[str, int] = {}
    for role in SPECIAL_KEYS:
        entry = config.get(f"{role}_token")
        text = entry.get("content") if isinstance(entry, dict) else entry
        if text in by_text:
            ids[role] = by_text[text]
    for role in SPECIAL_KEYS:
        found = [c[key] for c in model_configs if c.get(key := f"{role}_token_id") is not None]
        if found and isinstance(found[0], int):
            ids.setdefault(role, found[0])
    return {SPECIAL_KEYS[role]: Field(i, ValueType.U32) for role, i in ids.items()}


def _add_flags(
    path: Path, tokenizer: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Field]:
    flags: dict[str, bool] = {}
    step = tokenizer.get("post_processor") or {}
    for processor in step.get("processors", [step] if step else []):
        if processor.get("type") != "ByteLevel":
            raise ConfigError(
                f"{path / 'tokenizer.json'}: unknown post_processor {processor.get('type')}"
            )
        flags |= {"bos": False, "eos": False}
    for role in ADD_KEYS:
        if isinstance(value := config.get(f"add_{role}_token"), bool):
            flags.setdefault(role, value)
    return {f"add_{role}_token": Field(on, ValueType.BOOL) for role, on in flags.items()}


def _chat_templates(path: Path, config: Mapping[str, Any]) -> dict[str, Field]:
    template = config.get("chat_template")
    if template is None:
        template = _template_from_files(path)
    if template is None:
        return {}
    if isinstance(template, str):
        return {"tokenizer.chat_template": Field(template, ValueType.STRING)}
    named = {re.sub("[^A-Za-z0-9]", "_", t["name"]): t["template"] for t in template}
    default = named.pop("default", None)
    fields = {
        f"tokenizer.chat_template.{name}": Field(text, ValueType.STRING)
        for name, text in named.items()
    }
    if named:
        fields["tokenizer.chat_templates"] = string_array(list(named))
    if default is not None:
        fields["tokenizer.chat_template"] = Field(default, ValueType.STRING)
    return fields


def _template_from_files(path: Path) -> str | list[dict[str, str]] | None:
    jinja, as_json = path / "chat_template.jinja", path / "chat_template.json"
    if jinja.is_file():
        default = jinja.read_text(encoding="utf-8")
        more = sorted((path / "additional_chat_templates").glob("*.jinja"))
        if not more:
            return default
        named = [{"name": "default", "template": default}]
        return named + [{"name": p.stem, "template": p.read_text(encoding="utf-8")} for p in more]
    if as_json.is_file():
        template = read_json(as_json).get("chat_template")
        return template if isinstance(template, str | list) else None
    return None
