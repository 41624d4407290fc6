"""Prompts equal llama-server's recordings; a template can neither escape nor run away."""

import json
from pathlib import Path
from typing import Any

import pytest

from gguf_hybrid.errors import ConfigError, RequestError
from gguf_hybrid.text.messages import parse_messages, parse_tools
from gguf_hybrid.text.sandbox import RENDER_ERRORS, TemplateSandbox, render_within_budget
from gguf_hybrid.text.template import ChatPrompt, ChatTemplate, without_jinja
from gguf_hybrid.weights.reader import open_gguf

DATA = Path(__file__).parents[1] / "data"
RECORDED = json.loads((DATA / "chat" / "prompts.json").read_text())
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def qwen() -> ChatTemplate:
    metadata = open_gguf(DATA / "models" / "qwen35-tiny-Q4_K_M.gguf").metadata
    return ChatTemplate(str(metadata["tokenizer.chat_template"]))


def prompt_of(template: ChatTemplate, body: dict[str, Any]) -> ChatPrompt:
    messages = parse_messages(body["messages"])
    return template.prompt(
        messages,
        parse_tools(body.get("tools")),
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_from="auto" if messages[-1]["role"] == "assistant" else None,
        kwargs=body.get("chat_template_kwargs"),
    )


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_prompts_are_those_of_llama_server(qwen: ChatTemplate, case: dict[str, Any]) -> None:
    template = ChatTemplate(case["template"]) if "template" in case else qwen
    prompt = prompt_of(template, case["body"])
    assert prompt.text == case["prompt"]
    assert prompt.generation_prompt == case.get("generation_prompt", prompt.generation_prompt)


def test_the_reply_prefix_is_what_the_prompt_holds_of_the_reply(qwen: ChatTemplate) -> None:
    assert qwen.prompt([USER]).reply_prefix == "<think>\n"
    assert qwen.prompt([USER], enable_thinking=False).reply_prefix == "<think>\n\n</think>\n\n"
    begun = [USER, {"role": "assistant", "content": "A", "reasoning_content": "R"}]
    within = qwen.prompt(begun, continue_from="reasoning_content")
    assert within.reply_prefix == "<think>\nR"
    assert qwen.prompt(begun, continue_from="auto").reply_prefix == "<think>\nR\n</think>\n\nA"
    assert without_jinja().prompt([USER]).reply_prefix == ""


def test_an_open_thinking_part_is_known(qwen: ChatTemplate) -> None:
    assert qwen.prompt([USER]).opens_thinking
    assert not qwen.prompt([USER], enable_thinking=False).opens_thinking
    assert not without_jinja().prompt([USER]).opens_thinking


def test_a_switch_of_the_request_wins_and_must_be_a_boolean(qwen: ChatTemplate) -> None:
    off = qwen.prompt([USER], enable_thinking=True, kwargs={"enable_thinking": False})
    assert not off.opens_thinking
    with pytest.raises(RequestError, match="expected boolean, got string"):
        qwen.render([USER], kwargs={"enable_thinking": "false"})


def test_variables_may_have_any_name(qwen: ChatTemplate) -> None:
    names = ["self", "tools", "add_generation_prompt", "__budget", "__charge"]
    assert qwen.render([USER], kwargs=dict.fromkeys(names)).startswith("<|im_start|>user")


def test_caps_of_the_qwen_template(qwen: ChatTemplate) -> None:
    lacking = {name for name, able in vars(qwen.caps).items() if not able}
    assert lacking == {"supports_preserve_reasoning", "supports_reasoning_effort"}
    assert qwen.preserved_tokens == ("<tool_call>", "</tool_call>", "<think>", "</think>")


def test_caps_of_chatml() -> None:
    template = ChatTemplate("chatml")
    able = {name for name, able in vars(template.caps).items() if able}
    assert able == {"supports_string_content", "supports_system_role"}
    assert template.preserved_tokens == ()


def test_thinking_is_closed_where_the_template_ignores_the_switch() -> None:
    template = ChatTemplate(
        "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}"
    )
    assert template.render([USER], enable_thinking=False) == "Hi<think>\n</think>"
    assert template.render([USER], enable_thinking=True) == "Hi<think>\n"
    assert template.render([USER], add_generation_prompt=False, enable_thinking=False) == "Hi"


def test_parts_are_joined_for_templates_that_know_only_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = parse_messages([{"role": "user", "content": parts}])
    assert "user\na\nb<|im_end|>" in ChatTemplate("chatml").render(messages)


def test_text_becomes_parts_for_templates_that_know_only_parts() -> None:
    template = ChatTemplate("{% for p in messages[0].content %}[{{ p.text }}]{% endfor %}")
    assert template.render([USER]) == "[Hi]"


def test_a_system_text_moves_where_the_template_has_no_place_for_it() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert template.render([{"role": "system", "content": "S"}, USER]) == "S\nHi"


def test_what_the_tokenizer_adds_is_not_in_the_prompt() -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    assert ChatTemplate(source, "<s>", "</s>").render([USER]) == "<s>Hi</s>"
    bare = ChatTemplate(source, "<s>", "</s>", add_bos=True, add_eos=True)
    assert bare.render([USER]) == "Hi"


def test_variables_and_functions_of_templates() -> None:
    source = "{{ {'k': 'é', 'l': [1, none]} | tojson }} {{ x }} {{ strftime_now('%Y') | length }}"
    template = ChatTemplate(source + "{% for i in range(9) %}{% break %}{% endfor %}")
    assert template.render([USER], kwargs={"x": 3}) == '{"k": "é", "l": [1, null]} 3 4'


def test_dialects_of_templates_that_llama_cpp_accepts() -> None:
    source = "{{ 'a' + missing }}{% generation %}{{ messages[0].content }}{% endgeneration %}"
    assert ChatTemplate(source).render([USER]) == "aHi"


def test_preserved_reasoning_has_many_names() -> None:
    template = ChatTemplate("{{ preserve_thinking }} {{ clear_thinking }}")
    assert template.render([USER], kwargs={"preserve_reasoning": True}) == "True False"


def test_the_templates_own_message_reaches_the_client(qwen: ChatTemplate) -> None:
    with pytest.raises(RequestError) as refused:
        qwen.render(parse_messages([USER, {"role": "system", "content": "late"}]))
    assert str(refused.value) == "System message must be at the beginning."
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 'a'.ljust(10**9) }}",
        "{{ 2 ** 100000 }}",
        "{% set n=namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n=namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% for i in range(9999) %}{{ 'abc' * 10000 }}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 1 + 'a' }}",
        "{{ messages[7].content.x }}",
        "{{ messages[0].nothing | tojson }}",
    ],
)
def test_what_a_template_must_not_do_ends_in_a_refusal(source: str) -> None:
    with pytest.raises(RequestError):
        ChatTemplate(source).render([USER])


def test_endless_loops_end() -> None:
    rounds = "{% for i in range(99999) %}" * 2 + "{% endfor %}" * 2
    template = TemplateSandbox().from_string(rounds)
    with pytest.raises(RENDER_ERRORS, match="runs for more than"):
        render_within_budget(template, {}, max_seconds=0.05)


@pytest.mark.parametrize("source", ["{% if x %}", "{{ 1 +", "x" * (1 << 21)])
def test_a_template_that_does_not_compile_is_a_configuration_error(source: str) -> None:
    with pytest.raises(ConfigError, match=r"^chat template: [^\n]+$"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    ("messages", "status", "wording"),
    [
        ("x", 400, "Expected 'messages' to be an array"),
        (["x"], 400, "All non-assistant messages must contain 'content'"),
        ([{"role": "assistant"}], 400, "Assistant message must contain either"),
        ([{"role": "user", "content": 5}], 400, "Expected 'content' to be a string or an array"),
        ([{"role": "user", "content": [{"type": "x"}]}], 400, "unsupported content"),
        ([{"role": "user", "content": ["x"]}], 400, "unsupported content"),
        ([{"role": "user", "content": [{"type": "text"}]}], 500, "'text' must be a string"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            500,
            "image input is not supported",
        ),
        ([{"content": "x"}], 500, "Missing 'role' in message"),
        ([{"role": 5, "content": "x"}], 500, "'role' must be a string"),
        ([{"role": "assistant", "tool_calls": "x"}], 500, "'tool_calls' to be an array"),
        ([{"role": "assistant", "tool_calls": [{}]}], 500, "Missing tool call type"),
    ],
)
def test_wrong_messages_are_refused_as_llama_server_does(
    messages: object, status: int, wording: str
) -> None:
    with pytest.raises(RequestError, match=wording) as refused:
        parse_messages(messages)
    assert refused.value.status == status


def test_arguments_that_are_not_json_are_refused() -> None:
    function = {"name": "f", "arguments": "{"}
    call = {"type": "function", "function": function}
    with pytest.raises(RequestError, match="Failed to parse tool call arguments as JSON"):
        parse_messages([{"role": "assistant", "tool_calls": [call]}])


@pytest.mark.parametrize(
    ("tools", "wording"),
    [
        ("x", "Expected 'tools' to be an array"),
        ([5], "Missing tool type"),
        ([{"type": "x"}], "Unsupported tool type"),
        ([{"type": "function"}], "Missing tool function"),
        ([{"type": "function", "function": {}}], "'name' not found"),
    ],
)
def test_wrong_tools_are_refused_as_llama_server_does(tools: object, wording: str) -> None:
    with pytest.raises(RequestError, match=f"^Failed to parse tools: .*{wording}") as refused:
        parse_tools(tools)
    assert refused.value.status == 500


def test_without_jinja_a_built_in_form_is_chosen_by_name() -> None:
    reply = {"role": "assistant", "content": "Yes"}
    llama3 = without_jinja("llama3").prompt([USER, reply], continue_from="auto")
    assert llama3.text.endswith("<|start_header_id|>assistant<|end_header_id|>\n\nYes")
    command_r = without_jinja("command-r").prompt([USER]).text
    assert command_r.endswith("<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>")
    with pytest.raises(ConfigError, match="chatml, llama3, command-r"):
        without_jinja("{{ messages }}")
