"""Keys and prompts stay out of the log, keys are compared in full, static files stay inside."""

import hmac
import json
from pathlib import Path

import pytest
from aiohttp import web
from gguf_hybrid.server import auth
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from .conftest import MakeClient
from .server_process import ServerProcess

KEY, WRONG_KEY = "key-of-the-owner-4711", "key-of-a-stranger-4712"
PROMPT, SYSTEM = "the patient's name is Rumpelstilzchen", "never say Hollunderbusch"


def post(server: ServerProcess, path: str, body: object, key: str) -> int:
    connection = server.connect()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection.request("POST", path, json.dumps(body), headers)
    with connection.getresponse() as response:
        response.read()
        status = response.status
    connection.close()
    return status


def test_neither_keys_nor_prompts_are_logged(tmp_path: Path) -> None:
    flags = ["--demo", "-c", "512", "--api-key", KEY, "--log-file", str(tmp_path / "file")]
    with ServerProcess(flags, tmp_path / "stderr") as server:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
        chat = {"messages": messages, "max_tokens": 3}
        broken = {"prompt": PROMPT, "grammar": "root ::= nowhere"}
        assert post(server, "/v1/chat/completions", chat, KEY) == 200
        assert post(server, "/completion", {"prompt": PROMPT, "n_predict": 2}, KEY) == 200
        assert post(server, "/completion", {"prompt": PROMPT}, WRONG_KEY) == 401
        assert post(server, f"/completion?api_key={WRONG_KEY}", {"prompt": PROMPT}, "") == 401
        assert post(server, "/completion", broken, KEY) == 400
    logged = (tmp_path / "file").read_text() + (tmp_path / "stderr").read_text()
    assert "prompt eval" in logged
    for secret in (KEY, WRONG_KEY, "Rumpelstilzchen", "Hollunderbusch"):
        assert secret not in logged


def test_every_key_is_compared_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal or not, first or last: each comparison is ``hmac.compare_digest`` on all keys."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, key: bytes) -> bool:
        compared.append((given, key))
        return right(given, key)

    right = hmac.compare_digest
    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    headers = CIMultiDictProxy(CIMultiDict({"Authorization": "Bearer a"}))
    assert auth.has_valid_key(headers, ["a", "bb", "ccc"])
    assert compared == [(b"a", b"a"), (b"a", b"bb"), (b"a", b"ccc")]


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/a/..%2f..%2fsecret",
        "/link",
        "//etc/passwd",
        "/%00",
        "/secret%00.html",
    ],
)
async def test_static_files_are_those_of_the_folder(
    make_client: MakeClient, tmp_path: Path, path: str
) -> None:
    (tmp_path / "secret").write_text("SECRET")
    folder = tmp_path / "static"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    client = await make_client(static_path=str(folder))
    url = URL(str(client.make_url("/")).rstrip("/") + path, encoded=True)
    async with client.session.get(url) as response:
        assert response.status in {400, 404}
        assert "SECRET" not in await response.text()


async def test_a_body_beyond_the_limit_is_a_413(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gguf_hybrid.server import app

    monkeypatch.setattr(app, "MAX_BODY_BYTES", 1000)
    client = await make_client()
    async with client.post("/completion", data=b'{"prompt": "' + b"x" * 2000 + b'"}') as response:
        assert response.status == web.HTTPRequestEntityTooLarge.status_code
        assert "1000 bytes" in (await response.json())["error"]["message"]
