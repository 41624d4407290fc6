"""The page at ``/``: complete without a network, and speaking the API as it is.

Its logic runs in Node and the whole of it in Chromium, where the machine has them.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf_hybrid.server.web_page import PAGE, PAGE_PATHS

from .conftest import Client, MakeClient
from .fakes import MODEL, FakeRuntime
from .server_process import ServerProcess
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = ["-m", str(MODEL), "-c", "2048", "--temp", "0", "-n", "24", "--metrics"]
    with ServerProcess(flags, tmp_path_factory.mktemp("page") / "log") as running:
        yield running


@needs_chromium
def test_a_browser_shows_a_chat(server: ServerProcess, tmp_path: Path) -> None:
    """The page asks what its address says, and shows thinking, answer, counts and slots."""
    assert CHROMIUM is not None
    url = f"http://127.0.0.1:{server.port}/?q=What+is+12+%2B+30%3F"
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    words = [CHROMIUM, *flags, "--virtual-time-budget=8000", "--dump-dom", url]
    page = subprocess.run(words, check=True, capture_output=True, timeout=60).stdout.decode()
    (question, reply) = re.findall(r"<article.*?</article>", page, re.DOTALL)
    assert "What is 12 + 30?" in question
    assert re.search(r"<details class=\"\"><summary class=\"\">Thinking</summary><div.*?>\S", reply)
    assert re.search(r"\d+ tokens, [\d.]+ t/s, prompt \d+ read", reply)
    assert "error" not in reply
    assert re.search(r"slot 0: (idle|busy)", page) and "queue: 0" in page
