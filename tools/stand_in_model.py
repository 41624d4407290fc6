"""A random Qwen3.5-type GGUF that says short lower-case words, for tests of behaviour alone.

llama.cpp's server tests count tokens and look for text, so the output must never end by chance:
channel 0 of every embedding is one large constant, which normalisation hands to the head, and the
head adds it to words, commas, full stops and line ends and takes it from everything else.
"""

import re
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter, TokenType

_ARCH = "qwen35"
_N_EMBD, _N_FF = 64, 128
_N_HEAD, _HEAD_DIM = 2, 32
_N_V_HEAD, _STATE_SIZE, _CONV_KERNEL = 2, 32, 4
_N_LAYER = 5
_ATTENTION_LAYERS = (3, 4)
_MTP_LAYER = 4
_CONSTANT, _LIKELY, _UNLIKELY = 8.0, 1.0, -3.0
_N_COMMON = 40_000
_WORD = re.compile("^Ġ[a-z]{1,7}$")
_ALSO_LIKELY = (",", ".", "Ċ")
_EOS, _PAD = 151645, 151643
_CONTROL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>"),
    *("<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>")
_NAMED = (
    *_CONTROL,
    *("<tool_call>", "</tool_call>", *_FIM, "<|file_sep|>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
)
"""Texts of the special tokens from ``<|endoftext|>`` on; the vocabulary file has no names."""
_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def write_stand_in(vocabulary: Path, path: Path, seed: int = 7) -> None:
    """Write the model with the tokens of ``vocabulary`` (llama.cpp's ggml-vocab-qwen35.gguf)."""
    writer = GGUFWriter(path, _ARCH)
    tokens = _add_vocabulary(writer, GGUFReader(vocabulary))
    _add_numbers(writer)
    _Weights(writer, seed).add(tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: GGUFWriter, source: GGUFReader) -> list[str]:
    fields = ("tokens", "token_type", "merges")
    tokens, types, merges = (source.fields[f"tokenizer.ggml.{f}"].contents() for f in fields)
    for i, text in enumerate(_NAMED, start=_PAD):
        is_tag = text.strip("</").startswith(("tool", "think"))
        tokens[i] = text
        types[i] = int(TokenType.USER_DEFINED if is_tag else TokenType.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_ARCH)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(_EOS)
    writer.add_pad_token_id(_PAD)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_TEMPLATE)
    names: list[str] = tokens
    return names


def _add_numbers(writer: GGUFWriter) -> None:
    writer.add_name("stand-in")
    writer.add_block_count(_N_LAYER)
    writer.add_context_length(32768)
    writer.add_embedding_length(_N_EMBD)
    writer.add_feed_forward_length(_N_FF)
    writer.add_head_count(_N_HEAD)
    writer.add_head_count_kv(1)
    writer.add_key_length(_HEAD_DIM)
    writer.add_value_length(_HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(8)
    writer.add_array(f"{_ARCH}.rope.dimension_sections", [2, 1, 1, 0])
    writer.add_file_type(1)
    for name, value in {
        "nextn_predict_layers": 1,
        "full_attention_interval": 4,
        "ssm.conv_kernel": _CONV_KERNEL,
        "ssm.state_size": _STATE_SIZE,
        "ssm.group_count": 1,
        "ssm.time_step_rank": _N_V_HEAD,
        "ssm.inner_size": _N_V_HEAD * _STATE_SIZE,
    }.items():
        writer.add_uint32(f"{_ARCH}.{name}", value)


class _Weights:
    """Random float16 matrices [n_out, n_in], float32 vectors of ones."""

    def __init__(self, writer: GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)

    def add(self, tokens: list[str]) -> None:
        embedding = self._random.standard_normal((len(tokens), _N_EMBD))
        embedding[:, 0] = _CONSTANT
        head = 0.25 * self._random.standard_normal((len(tokens), _N_EMBD))
        head[:, 0] = [_LIKELY if _is_likely(i, t) else _UNLIKELY for i, t in enumerate(tokens)]
        self._writer.add_tensor("token_embd.weight", embedding.astype(np.float16))
        for layer in range(_N_LAYER):
            self._add_block(f"blk.{layer}.", layer)
        self._vector("output_norm.weight", _N_EMBD)
        self._writer.add_tensor("output.weight", head.astype(np.float16))

    def _add_block(self, prefix: str, layer: int) -> None:
        for name in ("attn_norm", "post_attention_norm"):
            self._vector(f"{prefix}{name}.weight", _N_EMBD)
        for name in ("ffn_gate", "ffn_up"):
            self._matrix(f"{prefix}{name}.weight", _N_FF, _N_EMBD)
        self._matrix(f"{prefix}ffn_down.weight", _N_EMBD, _N_FF)
        if layer in _ATTENTION_LAYERS:
            self._add_attention(prefix)
        else:
            self._add_delta_net(prefix)
        if layer == _MTP_LAYER:
            self._matrix(f"{prefix}nextn.eh_proj.weight", _N_EMBD, 2 * _N_EMBD)
            for name in ("enorm", "hnorm", "shared_head_norm"):
                self._vector(f"{prefix}nextn.{name}.weight", _N_EMBD)

    def _add_attention(self, prefix: str) -> None:
        n_query = _N_HEAD * _HEAD_DIM
        self._matrix(f"{prefix}attn_q.weight", 2 * n_query, _N_EMBD)  # with the output gate
        self._matrix(f"{prefix}attn_k.weight", _HEAD_DIM, _N_EMBD)
        self._matrix(f"{prefix}attn_v.weight", _HEAD_DIM, _N_EMBD)
        self._matrix(f"{prefix}attn_output.weight", _N_EMBD, n_query)
        self._vector(f"{prefix}attn_q_norm.weight", _HEAD_DIM)
        self._vector(f"{prefix}attn_k_norm.weight", _HEAD_DIM)

    def _add_delta_net(self, prefix: str) -> None:
        n_inner = _N_V_HEAD * _STATE_SIZE
        n_conv = 2 * _STATE_SIZE + n_inner
        self._matrix(f"{prefix}attn_qkv.weight", n_conv, _N_EMBD)
        self._matrix(f"{prefix}attn_gate.weight", n_inner, _N_EMBD)
        for name in ("ssm_alpha", "ssm_beta"):
            self._matrix(f"{prefix}{name}.weight", _N_V_HEAD, _N_EMBD)
        self._matrix(f"{prefix}ssm_out.weight", _N_EMBD, n_inner)
        self._vector(f"{prefix}ssm_norm.weight", _STATE_SIZE)
        self._vector(f"{prefix}ssm_a", _N_V_HEAD, -0.5)
        self._vector(f"{prefix}ssm_dt.bias", _N_V_HEAD, 0.5)
        kernel = 0.5 * self._random.standard_normal((n_conv, _CONV_KERNEL))
        self._writer.add_tensor(f"{prefix}ssm_conv1d.weight", kernel.astype(np.float32))

    def _matrix(self, name: str, n_out: int, n_in: int) -> None:
        values = self._random.standard_normal((n_out, n_in)) * 0.6 / np.sqrt(n_in)
        self._writer.add_tensor(name, values.astype(np.float16))

    def _vector(self, name: str, n: int, value: float = 1.0) -> None:
        self._writer.add_tensor(name, np.full(n, value, np.float32))


def _is_likely(i: int, text: str) -> bool:
    return i < _PAD and (text in _ALSO_LIKELY or (i < _N_COMMON and bool(_WORD.match(text))))
