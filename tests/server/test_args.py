"""The command line: what is accepted, what wins, what is refused and how it says so."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from gguf_hybrid.server.args import parse
from gguf_hybrid.server.flags import Status
from gguf_hybrid.server.settings import FLAGS

from gguf_hybrid.errors import ConfigError

TYPICAL = """
-m Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf -c 65536 -np 4 -ngl 99 -fa on --jinja --temp 0.6 --top-p 0.95
--top-k 20 --min-p 0 -ctk q8_0 -ctv q8_0 --cache-ram 8192 --spec-type draft-mtp
--spec-draft-n-max 3 --reasoning-format deepseek
--chat-template-kwargs '{"enable_thinking":true}' --host 0.0.0.0 --port 8080 --metrics
--slot-save-path {folder} --no-mmproj --alias qwen3.6
"""
MODEL = ["-m", "model.gguf"]


def parsed(*words: str, **environ: str) -> Any:
    return parse([*MODEL, *words], environ)


def refusal(*words: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse([*MODEL, *words], environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_typical_line_starts_unchanged(tmp_path: Path) -> None:
    arguments = parse(shlex.split(TYPICAL.replace("{folder}", str(tmp_path))), {})
    runtime, server = arguments.runtime, arguments.server
    assert (runtime.n_ctx, runtime.n_parallel, runtime.n_gpu_layers) == (65536, 4, 99)
    assert (runtime.cache_type_k, runtime.cache_type_v) == ("f16", "f16")
    assert runtime.speculative.types == ("draft-mtp",)
    assert server.request == {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0}
    assert server.chat.template_kwargs == {"enable_thinking": True}
    assert (server.hosts, server.port, server.model_name) == (("0.0.0.0",), 8080, "qwen3.6")
    assert server.metrics and server.slot_save_path == str(tmp_path)
    assert any("q8_0" in warning for warning in arguments.warnings)


def test_later_sources_win(tmp_path: Path) -> None:
    folder = tmp_path / "llama.cpp"
    folder.mkdir()
    text = "ctx-size = 100\nno-slots = true\nLLAMA_ARG_PORT = 1\nnonsense = 1\n[x]\nparallel = 9\n"
    (folder / "config.ini").write_text(text)
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "LLAMA_ARG_PORT": "2", "LLAMA_ARG_BATCH": "7"}
    arguments = parse([*MODEL, "-b", "8"], environ)
    assert (arguments.runtime.n_ctx, arguments.runtime.n_parallel) == (100, -1)
    assert (arguments.server.port, arguments.server.slots) == (2, False)
    assert arguments.runtime.n_batch == 8
    assert any("LLAMA_ARG_BATCH" in warning for warning in arguments.warnings)
    assert any("nonsense" in warning for warning in arguments.warnings)


def test_underscores_count_as_dashes_and_the_last_of_two_wins() -> None:
    arguments = parsed("--ctx_size", "512", "--ctx-size", "1024")
    assert arguments.runtime.n_ctx == 1024
    assert any("more than once" in warning for warning in arguments.warnings)


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, True),
        ({"LLAMA_ARG_ENDPOINT_SLOTS": "off"}, False),
        ({"LLAMA_ARG_ENDPOINT_SLOTS": "enabled"}, True),
        ({"LLAMA_ARG_NO_ENDPOINT_SLOTS": "anything"}, False),
    ],
)
def test_variables_switch_on_and_off(environ: dict[str, str], on: bool) -> None:
    assert parsed(**environ).server.slots is on


def test_a_switch_without_negation_needs_a_true_word() -> None:
    assert parsed(LLAMA_ARG_ENDPOINT_METRICS="1").server.metrics
    assert not parsed(LLAMA_ARG_ENDPOINT_METRICS="no").server.metrics


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--nope"], "--nope"),
        (["--port=1"], "--port=1"),
        (["-c", "abc"], '"-c"'),
        (["-c"], "expected value"),
        (["-np", "0"], "n_parallel"),
        (["-fa", "maybe"], "--flash-attn"),
        (["--temp", "nan"], "not a finite number"),
        (["--mlock"], "--load-mode"),
        (["--draft-max", "3"], "--spec-draft-n-max"),
        (["--rpc", "x:1"], "remote devices"),
        (["--lora", "a.gguf"], "adapters"),
        (["--tools", "all"], "tools"),
        (["--reranking"], "no ranking head"),
        (["--pooling", "rank"], "no ranking head"),
        (["--pooling", "max"], "--pooling: 'max'"),
        (["--spec-type", "draft-simple"], "draft-simple"),
        (["--chat-template-kwargs", "{bad"], "not valid JSON"),
        (["--chat-template-file", "/none/x"], "/none/x"),
        (["--ssl-key-file", "k"], "--ssl-cert-file"),
    ],
)
def test_what_is_refused_is_named_in_one_line(words: list[str], part: str) -> None:
    assert part in refusal(*words)


def test_embeddings_are_switched_on() -> None:
    assert not parsed().runtime.embeddings
    asked = parsed("--embedding", "--pooling", "mean", "--embd-normalize", "-1")
    assert asked.runtime.embeddings and asked.runtime.pooling == "mean"
    assert asked.server.embd_normalize == -1
    assert parsed(LLAMA_ARG_EMBEDDINGS="1", LLAMA_ARG_POOLING="cls").runtime.pooling == "cls"


def test_a_bad_variable_is_named() -> None:
    assert "LLAMA_ARG_CTX_SIZE" in refusal(LLAMA_ARG_CTX_SIZE="many")
    assert "LLAMA_ARG_RPC" in refusal(LLAMA_ARG_RPC="x:1")


def test_ignored_flags_that_matter_are_told() -> None:
    warnings = parsed("--context-shift", "--swa-full").warnings
    assert any("--context-shift" in warning for warning in warnings)
    assert not any("--swa-full" in warning for warning in warnings)


def test_no_model_is_an_error_unless_the_demo_may_stand_in() -> None:
    with pytest.raises(ConfigError, match="-hf"):
        parse([], {})
    assert parse([], {}, demo_without_model=True).server.source.demo
    assert parse(["--help"], {}).action == "help"


def test_stop_strings_and_breakers_are_gathered_and_unescaped() -> None:
    request = parsed("-r", r"a\n", "-r", "b", "--dry-sequence-breaker", r"\t").server.request
    assert request["stop"] == ["a\n", "b"]
    assert request["dry_sequence_breakers"] == ["\t"]
    assert parsed("-r", r"a\n", "--no-escape").server.request["stop"] == [r"a\n"]


def test_override_kv_is_typed() -> None:
    runtime = parsed("--override-kv", "a=int:5,b=bool:true,c=float:0.5,d=str:x").runtime
    assert runtime.override_kv == {"a": 5, "b": True, "c": 0.5, "d": "x"}


def test_every_flag_is_spelled_once_and_has_a_home() -> None:
    names = [name for flag in FLAGS for name in (*flag.names, *flag.off)]
    assert len(names) == len(set(names))
    for flag in FLAGS:
        assert bool(flag.target) == (flag.status is Status.WORKS), flag.names
        assert flag.help, flag.names
