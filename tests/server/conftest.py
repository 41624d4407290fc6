"""A server without a model behind a real HTTP client, and real servers for recorded cases."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from gguf_hybrid.server.app import create_app
from gguf_hybrid.server.config import ServerConfig
from gguf_hybrid.server.context import Context, Loaded

from .fakes import FakeRuntime
from .golden_servers import Servers

Client = TestClient[Any, Any]
MakeClient = Callable[..., Awaitable[Client]]


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
async def make_client(runtime: FakeRuntime) -> AsyncIterator[MakeClient]:
    """``await make_client(loading=False, **fields of ServerConfig)``."""
    clients: list[Client] = []

    async def make(*, loading: bool = False, **fields: Any) -> Client:
        config = ServerConfig(aliases=("tiny",), **fields)
        context = Context(config)
        if not loading:
            context.model = Loaded(runtime, config)
        server = TestServer(create_app(context))
        client: Client = TestClient(server)
        await client.start_server()
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
async def client(make_client: MakeClient) -> Client:
    return await make_client()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    running = Servers(tmp_path_factory.mktemp("servers"))
    yield running
    running.stop()
