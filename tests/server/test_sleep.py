"""Which requests wake a model that was unloaded for want of work."""

import pytest

from .conftest import Client
from .fakes import FakeRuntime

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("method", "path", "wakes"),
    [
        ("GET", "/health", False),
        ("GET", "/props", False),
        ("GET", "/v1/models", False),
        ("GET", "/", False),
        ("GET", "/nowhere", False),
        ("OPTIONS", "/completion", False),
        ("GET", "/slots", True),
        ("POST", "/tokenize", True),
        ("POST", "/v1/chat/completions/input_tokens", True),
        ("POST", "/v1/chat/completions", True),
    ],
)
async def test_only_looking_does_not_wake(
    client: Client, runtime: FakeRuntime, method: str, path: str, wakes: bool
) -> None:
    runtime.worker.is_sleeping = True
    async with client.request(method, path, json=CHAT) as response:
        await response.read()
    assert runtime.worker.is_sleeping is not wakes
