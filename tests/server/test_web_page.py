"""The page at ``/``: complete without a network, and speaking the API as it is.

Its logic runs in Node and the whole of it in Chromium, where the machine has them.
"""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from gguf_hybrid.server.web_page import PAGE, PAGE_PATHS

from gguf_hybrid.engine.request import SlotView
from gguf_hybrid.errors import StepError

from .browser import SECONDS, Browser
from .conftest import Client, MakeClient
from .fakes import REPLY, FakeRuntime, tokenizer
from .test_openai import REPLIES, TOOL

UI = Path(__file__).parents[2] / "server/ui"
NODE, CHROMIUM = shutil.which("node"), shutil.which("chromium")
needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

FOLD = """
import { readFileSync } from "node:fs";
import { frames, emptyMessage, fold } from "%s";
const bytes = readFileSync(0);
const body = new ReadableStream({
  start(controller) {
    for (const byte of bytes) controller.enqueue(new Uint8Array([byte]));
    controller.close();
  },
});
const message = emptyMessage();
for await (const data of frames(body)) if (data !== "[DONE]") fold(message, JSON.parse(data));
console.log(JSON.stringify(message));
"""


async def test_everything_the_page_names_is_served(client: Client) -> None:
    async with client.get("/") as response:
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'self'" in response.headers["Content-Security-Policy"]
        page = await response.text()
    named = set(re.findall(r'(?:src|href)="([^"]+)"', page)) - {"data:,"}
    named |= {f"ui/{m}" for text in PAGE.values() for m in re.findall(r'"\./(\S+)"', text.decode())}
    assert named == {f"ui/{name}" for name in PAGE} - {"ui/index.html"}
    for path in named:
        async with client.get(f"/{path}") as response:
            assert response.status == 200


def test_nothing_is_fetched_from_elsewhere() -> None:
    for name, text in PAGE.items():
        assert not re.search(rb"https?://|[\"']//|@import", text), name


async def test_the_page_needs_no_key_and_can_be_switched_off(make_client: MakeClient) -> None:
    client = await make_client(api_keys=("k",))
    for path in PAGE_PATHS:
        async with client.get(path) as response:
            assert response.status == 200
    client = await make_client(ui=False)
    for path in PAGE_PATHS:
        async with client.get(path) as response:
            assert response.status == 404


async def test_files_of_a_folder_instead(make_client: MakeClient, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "index.html").write_text("mine")
    client = await make_client(static_path=str(folder))
    for path, status in {"/": 200, "/index.html": 200, "/..%2fsecret": 404, "/none": 404}.items():
        async with client.get(path) as response:
            assert response.status == status
            assert status == 404 or await response.text() == "mine"


@needs_node
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
async def test_the_page_folds_a_stream_to_the_whole_answer(
    client: Client, runtime: FakeRuntime, reply: str
) -> None:
    runtime.worker.reply, runtime.worker.n_ctx = reply, 2048
    body = {"messages": [{"role": "user", "content": "?"}], "tools": [TOOL]}
    async with client.post("/v1/chat/completions", json={**body, "stream": True}) as response:
        stream = await response.read()
    async with client.post("/v1/chat/completions", json=body) as response:
        message = (await response.json())["choices"][0]["message"]
    folded = json.loads(node(FOLD % (UI / "stream.js").as_uri(), stream))
    for call in (*folded["tool_calls"], *message.get("tool_calls", [])):
        del call["id"]
    assert folded == {"reasoning_content": "", "tool_calls": [], **message}


@needs_node
@pytest.mark.parametrize("name", [name for name in PAGE if name.endswith(".js")])
def test_scripts_are_well_formed(name: str) -> None:
    node("", b"", "--check", str(UI / name))


def node(script: str, stdin: bytes, *words: str) -> bytes:
    """What a script (or Node with ``words``) prints."""
    assert NODE is not None
    words = words or ("--input-type=module", "--eval", script)
    return subprocess.run([NODE, *words], input=stdin, check=True, capture_output=True).stdout


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    assert CHROMIUM is not None
    async with Browser(CHROMIUM, tmp_path / "profile") as browser:
        yield browser


def address(client: Client) -> str:
    return f"http://127.0.0.1:{client.port}/"


@needs_chromium
async def test_a_chat_by_keyboard(browser: Browser, client: Client, runtime: FakeRuntime) -> None:
    """Enter sends, thinking is folded away, Escape stops, and the chat can go on."""
    runtime.worker.reply = REPLIES["thinking"]
    await browser.open(address(client))
    await browser.type("What does river mean?")
    await browser.press("Enter")
    await browser.until(f"document.querySelector('.assistant .content').textContent === {REPLY!r}")
    assert await browser.run("document.querySelector('.assistant details').open") is False
    assert "t/s" in await browser.run("document.querySelector('.assistant .note').textContent")
    runtime.worker.gate.clear()
    await browser.type("And lake?")
    await browser.press("Enter")
    await browser.until("!document.getElementById('stop').hidden")
    await browser.press("Escape")
    await browser.until("!document.getElementById('send').hidden")
    assert await browser.run("document.activeElement.id") == "text"
    await eventually(lambda: runtime.worker.cancelled == [runtime.worker.submitted[1].id])
    prompt = tokenizer().detokenize(runtime.worker.submitted[1].prompt)
    assert REPLY in prompt and "And lake?" in prompt


@needs_chromium
async def test_a_call_is_shown_and_its_result_sent(
    browser: Browser, client: Client, runtime: FakeRuntime
) -> None:
    runtime.worker.reply, runtime.worker.n_ctx = REPLIES["call"], 2048
    await browser.open(address(client))
    settings = json.dumps({"tools": json.dumps([TOOL]), "thinking": True})
    await browser.run(f"localStorage.setItem('gguf-hybrid', {json.dumps(settings)})")
    await browser.open(f"{address(client)}?q=Add.")
    await browser.until("document.querySelector('.call textarea') !== null")
    assert await browser.run("document.querySelector('.call pre').textContent") == 'add({"a":12})'
    await browser.run("document.querySelector('.call textarea').focus()")
    await browser.type("seventeen")
    await browser.run("document.querySelector('.call + button').click()")
    await browser.until("document.querySelectorAll('.assistant').length === 2")
    await eventually(lambda: len(runtime.worker.submitted) == 2)
    prompt = tokenizer().detokenize(runtime.worker.submitted[1].prompt)
    assert "<tool_response>\nseventeen\n</tool_response>" in prompt


@needs_chromium
async def test_slots_errors_and_colours(
    browser: Browser, client: Client, runtime: FakeRuntime
) -> None:
    runtime.worker.views = [view(0, is_processing=False), view(1, is_processing=True)]
    runtime.worker.error = StepError("the row has failed")
    await browser.open(f"{address(client)}?q=Hi")
    await browser.until("document.querySelector('#slots .busy') !== null")
    assert "slot 1: busy" in await browser.run("document.getElementById('slots').textContent")
    await browser.until("document.querySelector('.error')?.textContent === 'the row has failed'")
    colours = set()
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await browser.call("Emulation.setEmulatedMedia", features=features)
        colours.add(await browser.run("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2


async def eventually(is_true: Callable[[], bool]) -> None:
    """Wait for the server's side of what the page shows already."""
    async with asyncio.timeout(SECONDS):
        while not is_true():
            await asyncio.sleep(0.02)


def view(id: int, *, is_processing: bool) -> SlotView:
    return SlotView(id, 256, is_processing, 1, 9, 5, 4, 0, 0, 3, 5, is_processing, False, {})
