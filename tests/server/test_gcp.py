"""Google's prediction form: every instance is answered as a request of its own would be."""

from typing import Any

import pytest
from gguf_hybrid.server.config import PredictionConfig
from gguf_hybrid.server.gcp import request_format

from gguf_hybrid.errors import ConfigError

from .conftest import Client, MakeClient
from .fakes import REPLY, FakeRuntime
from .test_openai import post

PLATFORM = PredictionConfig(health_route="/alive", predict_route="/predict", port=8080)
CHAT = {
    "@requestFormat": "chatCompletions",
    "messages": [{"role": "user", "content": "What does river mean?"}],
}


@pytest.fixture
async def client(make_client: MakeClient) -> Client:
    return await make_client(prediction=PLATFORM)


async def predictions(client: Client, *instances: Any) -> list[Any]:
    answer = await post(client, "/predict", {"instances": instances})
    found: list[Any] = answer["predictions"]
    assert len(found) == len(instances)
    return found


async def test_answers_come_in_order_and_errors_in_their_place(client: Client) -> None:
    native = {"@requestFormat": "/completion", "prompt": "x", "n_predict": 1}
    wrong = {**native, "n_predict": "x"}
    chat, one, error, unknown, number = await predictions(
        client, CHAT, native, wrong, {"@requestFormat": "engines"}, 5
    )
    assert chat["choices"][0]["message"]["reasoning_content"] == REPLY
    assert one["tokens_predicted"] == 1
    assert "n_predict" in error["error"]["message"]
    assert "engines" in unknown["error"]["message"]
    assert number["error"]["code"] == 400


async def test_nothing_is_streamed(client: Client) -> None:
    (answer,) = await predictions(client, {**CHAT, "stream": True})
    assert answer["object"] == "chat.completion"


@pytest.mark.parametrize("body", [[], {}, {"instances": 5}, {"instances": [{}] * 129}])
async def test_a_wrong_body_is_refused(client: Client, body: Any) -> None:
    await post(client, "/predict", body, status=400)


async def test_the_key_holds_for_instances_too(
    make_client: MakeClient, runtime: FakeRuntime
) -> None:
    client = await make_client(prediction=PLATFORM, api_keys=("k",))
    await post(client, "/predict", {"instances": [CHAT]}, status=401)
    headers = {"Authorization": "Bearer k"}
    async with client.post("/predict", json={"instances": [CHAT]}, headers=headers) as response:
        (answer,) = (await response.json())["predictions"]
    assert "choices" in answer


async def test_health_has_the_route_that_was_asked_for(client: Client) -> None:
    async with client.get("/alive") as response:
        assert await response.json() == {"status": "ok"}


async def test_a_route_that_exists_already_is_refused(make_client: MakeClient) -> None:
    taken = PredictionConfig(health_route="", predict_route="/completion", port=8080)
    with pytest.raises(ConfigError, match="/completion"):
        await make_client(prediction=taken)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chatCompletions"),
        ("/apply-template", "applyTemplate"),
        ("/v1/messages/count_tokens", "messagesCountTokens"),
        ("/slots/{id}", "slots"),
    ],
)
def test_names_of_formats(path: str, name: str) -> None:
    assert request_format(path) == name


def test_the_platform_is_read_from_variables() -> None:
    assert PredictionConfig.from_environment({}) is None
    found = PredictionConfig.from_environment({"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "81"})
    assert found == PredictionConfig(health_route="", predict_route="/predict", port=81)
    with pytest.raises(ConfigError, match="AIP_HTTP_PORT"):
        PredictionConfig.from_environment({"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "x"})
