"""What every route has in common: order of checks, headers, keys, CORS, errors, loading."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from gguf_hybrid.server.config import CorsConfig, ModelSource
from gguf_hybrid.server.metrics import RateWindow, render
from gguf_hybrid.server.model_source import choose_file, find_model, shard_names

from gguf_hybrid.engine.cache import CacheStats
from gguf_hybrid.engine.request import Counters
from gguf_hybrid.errors import ConfigError

from .conftest import Client, MakeClient
from .fakes import FakeRuntime

NOT_FOUND = {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}


async def get(client: Client, path: str, **headers: str) -> tuple[int, Any, Any]:
    async with client.get(path, headers=headers) as response:
        is_json = response.content_type == "application/json"
        body = await response.json() if is_json else await response.text()
        return response.status, body, response.headers


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/nope"), ("GET", "/completion"), ("PUT", "/health"), ("POST", "/health")],
)
async def test_a_wrong_method_is_as_unknown_as_a_wrong_path(
    client: Client, method: str, path: str
) -> None:
    async with client.request(method, path) as response:
        assert (response.status, await response.json()) == (404, NOT_FOUND)
        assert response.headers["Server"] == "llama.cpp"


async def test_while_loading_everything_but_options_is_503(make_client: MakeClient) -> None:
    client = await make_client(loading=True, api_keys=("k",))
    for path in ("/health", "/nope", "/v1/models"):
        status, body, _ = await get(client, path)
        assert (status, body["error"]["message"]) == (503, "Loading model")
    async with client.options("/completion") as response:
        assert response.status == 200


async def test_an_engine_that_died_shows_in_health(client: Client, runtime: FakeRuntime) -> None:
    from gguf_hybrid.server.context import CONTEXT

    client.server.app[CONTEXT].failure = "RuntimeError: out of memory"  # type: ignore[attr-defined]
    status, body, _ = await get(client, "/health")
    assert status == 500
    assert "out of memory" in body["error"]["message"]


async def test_keys_guard_all_but_health(make_client: MakeClient) -> None:
    client = await make_client(api_keys=("secret", "zweiter schlüssel"), metrics=True)
    for path in ("/health", "/v1/health"):
        assert (await get(client, path))[0] == 200
    for path in ("/props", "/slots", "/metrics", "/v1/models", "/nope", "/slots/0"):
        assert (await get(client, path))[0] == 401
    for headers in ({"Authorization": "Bearer secret"}, {"X-Api-Key": "secret"}):
        assert (await get(client, "/v1/models", **headers))[0] == 200
    for value in ("Bearer wrong", "bearer secret", "Basic secret", "Bearer secret2", "é"):
        assert (await get(client, "/v1/models", Authorization=value))[0] == 401


async def test_a_prefix_moves_all_routes(make_client: MakeClient) -> None:
    client = await make_client(api_prefix="/x", api_keys=("k",))
    assert (await get(client, "/x/health"))[0] == 401
    assert (await get(client, "/x/health", Authorization="Bearer k"))[0] == 200
    assert (await get(client, "/health", Authorization="Bearer k"))[0] == 404


@pytest.mark.parametrize(
    ("cors", "origin", "allowed"),
    [
        (CorsConfig(), "http://a.example", "http://a.example"),
        (CorsConfig(), "", ""),
        (CorsConfig(credentials=False), "http://a.example", "*"),
        (CorsConfig(origins="localhost"), "http://localhost:3000", "http://localhost:3000"),
        (CorsConfig(origins="localhost"), "http://[::1]:1", "http://[::1]:1"),
        (CorsConfig(origins="localhost"), "http://localhost.evil.com", None),
        (CorsConfig(origins="localhost"), "http://[bad", None),
        (CorsConfig(origins="http://b.example"), "http://a.example", "http://b.example"),
    ],
)
async def test_allowed_origins(
    make_client: MakeClient, cors: CorsConfig, origin: str, allowed: str | None
) -> None:
    client = await make_client(cors=cors)
    _, _, headers = await get(client, "/health", **({"Origin": origin} if origin else {}))
    assert headers.get("Access-Control-Allow-Origin") == allowed
    assert "Access-Control-Allow-Credentials" not in headers


async def test_a_body_that_is_no_object_is_named(client: Client) -> None:
    async with client.post("/completion", data=b"[]") as response:
        error = (await response.json())["error"]
    assert error["message"] == "[json.exception.type_error.304] cannot use at() with array"


async def test_an_unforeseen_error_is_a_500_and_is_logged(
    client: Client, runtime: FakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.worker.slots = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    status, body, _ = await get(client, "/slots")
    assert (status, body["error"]["type"]) == (500, "server_error")
    assert "ZeroDivisionError" in caplog.text


def test_metrics_keep_names_and_close_their_window() -> None:
    window = RateWindow()
    now = Counters(prompt_tokens=10, prompt_seconds=2.0, tokens_predicted=5)
    now.tokens_predicted_timed, now.tokens_predicted_seconds = 4, 0.5
    assert window.close(now) == (5.0, 8.0)
    assert window.close(now) == (0.0, 0.0)
    page = render(now, (5.0, 8.0), CacheStats(0, 0, None))
    assert "llamacpp:prompt_tokens_total 10\n" in page
    assert "# TYPE llamacpp:predicted_tokens_seconds gauge\n" in page
    assert page.count("# HELP") == page.count("# TYPE") == 20


async def test_metrics_tell_what_became_of_states(make_client: MakeClient) -> None:
    client = await make_client(metrics=True)
    page = await (await client.get("/metrics")).text()
    assert "gguf_hybrid:checkpoints 3\n" in page
    assert "gguf_hybrid:checkpoint_bytes 4096\n" in page
    assert "gguf_hybrid:prompt_tokens_reread_total 0\n" in page


@pytest.mark.parametrize(
    ("quant", "chosen"),
    [
        (None, "x-Q4_K_M.gguf"),
        ("q8_0", "x-Q8_0-00001-of-00002.gguf"),
        ("Q4_K", None),
        ("BF16", "BF16/x-BF16.gguf"),
    ],
)
def test_a_quantisation_names_one_file(quant: str | None, chosen: str | None) -> None:
    names = [
        "README.md",
        "mmproj-BF16.gguf",
        "BF16/x-BF16.gguf",
        "x-Q4_K_M.gguf",
        "x-Q8_0-00001-of-00002.gguf",
        "x-Q8_0-00002-of-00002.gguf",
    ]
    assert choose_file(names, quant) == chosen


def test_all_shards_are_fetched() -> None:
    assert shard_names("a/x-00001-of-00003.gguf") == [
        f"a/x-0000{i}-of-00003.gguf" for i in (1, 2, 3)
    ]
    assert shard_names("x.gguf") == ["x.gguf"]


def test_a_repository_is_found_in_the_cache_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models--user--repo"
    snapshot = folder / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("0")
    for name in ("x-Q8_0.gguf", "x-Q4_K_M.gguf"):
        (snapshot / name).write_bytes(b"GGUF")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    found = find_model(ModelSource(hf_repo="user/repo:q8_0", offline=True))
    assert Path(found) == snapshot / "x-Q8_0.gguf"
    with pytest.raises(ConfigError, match="no such GGUF"):
        find_model(ModelSource(hf_repo="user/repo:Q2_K", offline=True))
    with pytest.raises(ConfigError, match="not in the cache"):
        find_model(ModelSource(hf_repo="user/other", offline=True))


async def test_a_client_that_does_not_finish_its_request_disturbs_nobody(client: Client) -> None:
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    assert (await get(client, "/health"))[0] == 200
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""
    assert (await get(client, "/health"))[0] == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /completion HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=["no request", "long header", "long path", "negative length"],
)
async def test_what_is_not_http_is_refused(client: Client, raw: bytes) -> None:
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(raw)
    assert b" 400 Bad Request" in await reader.readline()
    writer.close()
    await writer.wait_closed()
    assert (await get(client, "/health"))[0] == 200


async def test_a_body_that_takes_too_long_is_a_408(make_client: MakeClient) -> None:
    client = await make_client(timeout=1)
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert b" 408 " in await reader.readline()
    writer.close()
    await writer.wait_closed()
