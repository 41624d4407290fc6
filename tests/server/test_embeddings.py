"""Embeddings over HTTP: both forms, what is refused, and the official client on a real server."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
from gguf_hybrid.server.embeddings import normalized

from gguf_hybrid.engine.pooling import Pooling

from .conftest import Client
from .fakes import FakeRuntime, embedding_of, tokenizer
from .goldens import MODELS
from .server_process import ServerProcess
from .test_openai import post

TEXTS = ["import os", "What is the weather in Paris?", "What is the weather in London?"]
NATIVE, OPENAI = "/embedding", "/v1/embeddings"


def ids(text: str) -> tuple[int, ...]:
    return tuple(tokenizer().encode(text))


def unit(text: str) -> list[float]:
    vector = embedding_of(ids(text))
    return (vector / np.linalg.norm(vector, axis=-1)).tolist()


@pytest.fixture
def pooled(runtime: FakeRuntime) -> FakeRuntime:
    runtime.pooling = Pooling.MEAN
    return runtime


async def test_native_form(client: Client, pooled: FakeRuntime) -> None:
    answer = await post(client, "/embeddings", {"content": TEXTS})
    assert [item["index"] for item in answer] == [0, 1, 2]
    for item, text in zip(answer, TEXTS, strict=True):
        assert item.keys() == {"index", "embedding"}
        assert np.allclose(item["embedding"], unit(text), rtol=1e-6)


async def test_openai_form(client: Client, pooled: FakeRuntime) -> None:
    answer = await post(client, OPENAI, {"input": TEXTS})
    n_tokens = sum(len(ids(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    assert (answer["model"], answer["object"]) == ("tiny", "list")
    for i, (item, text) in enumerate(zip(answer["data"], TEXTS, strict=True)):
        assert (item["index"], item["object"]) == (i, "embedding")
        assert np.allclose(item["embedding"], unit(text)[0], rtol=1e-6)


async def test_base64_is_little_endian_floats(client: Client, pooled: FakeRuntime) -> None:
    body = {"input": TEXTS[0], "model": "mine"}
    plain = await post(client, OPENAI, body)
    answer = await post(client, OPENAI, {**body, "encoding_format": "base64"})
    (item,) = answer["data"]
    raw = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
    assert raw.tolist() == plain["data"][0]["embedding"]
    assert item["encoding_format"] == "base64" and answer["model"] == "mine"


async def test_the_field_content_makes_the_answer_native(
    client: Client, pooled: FakeRuntime
) -> None:
    assert isinstance(await post(client, OPENAI, {"content": "a"}), list)


@pytest.mark.parametrize("prompt", [list(ids(TEXTS[1])), [list(ids(TEXTS[1]))], [TEXTS[1]]])
async def test_token_ids_are_as_good_as_text(
    client: Client, pooled: FakeRuntime, prompt: object
) -> None:
    expected = await post(client, NATIVE, {"input": TEXTS[1]})
    assert await post(client, NATIVE, {"input": prompt}) == expected


async def test_requests_are_of_their_kind(client: Client, pooled: FakeRuntime) -> None:
    await post(client, NATIVE, {"input": TEXTS})
    for request in pooled.worker.submitted:
        assert (request.kind, request.pooling) == ("embedding", Pooling.MEAN)
        assert not request.cache_prompt


async def test_without_pooling_each_token_has_a_vector_as_it_is(
    client: Client, runtime: FakeRuntime
) -> None:
    runtime.pooling = Pooling.NONE
    (item,) = await post(client, NATIVE, {"content": TEXTS[1], "embd_normalize": 2})
    assert item["embedding"] == embedding_of(ids(TEXTS[1]), Pooling.NONE).tolist()
    assert len(item["embedding"]) == len(ids(TEXTS[1]))
    error = await post(client, OPENAI, {}, status=400)
    assert error["error"]["message"].startswith("Pooling type 'none' is not OAI compatible")


@pytest.mark.parametrize("path", [NATIVE, "/embeddings", OPENAI])
async def test_without_the_flag_there_are_none(client: Client, path: str) -> None:
    error = await post(client, path, {"input": "a"}, status=501)
    assert "Start it with `--embeddings`" in error["error"]["message"]


@pytest.mark.parametrize("path", [NATIVE, OPENAI])
@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, '"input" or "content" must be provided'),
        ({"input": ""}, "Input content cannot be empty"),
        ({"input": ["a", ""]}, "Input content cannot be empty"),
        ({"input": []}, '"input" must not be empty'),
        ({"input": 5}, "elements must be a string"),
        ({"input": [5000]}, "token"),
        ({"input": "a", "encoding_format": "raw"}, "Can be either float or base64"),
        ({"input": "a", "encoding_format": 1}, "type must be string, but is number"),
        ({"input": "a", "embd_normalize": "2"}, "type must be number, but is string"),
    ],
)
async def test_bad_bodies(
    client: Client, pooled: FakeRuntime, path: str, body: object, part: str
) -> None:
    error = (await post(client, path, body, status=400))["error"]
    assert part in error["message"] and error["type"] == "invalid_request_error"
    assert pooled.worker.submitted == []


# -- normalisation --------------------------------------------------------------------------------

VECTOR = np.array([[3.0, -4.0, 0.0]], np.float32)


@pytest.mark.parametrize(
    ("p", "norm"), [(-1, 1.0), (0, 4 / 32760), (1, 7.0), (2, 5.0), (3, 91 ** (1 / 3))]
)
def test_norms(p: int, norm: float) -> None:
    assert np.allclose(normalized(VECTOR, p), VECTOR / norm, rtol=1e-6)


@pytest.mark.parametrize("p", [-5, -2, 0, 1, 2, 7, 10**6, 2**63])
@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30])
def test_every_norm_gives_finite_numbers(p: int, value: float) -> None:
    vector = np.array([[value, 0.0, -value]], np.float32)
    assert np.isfinite(normalized(vector, p)).all()


# -- the official client --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Pools as the file says, which is told to say "mean"."""
    model = str(MODELS / "qwen35-tiny-Q4_K_M.gguf")
    flags = ["-m", model, "-c", "4096", "-np", "2", "--embeddings"]
    flags += ["--override-kv", "qwen35.pooling_type=int:1"]
    with ServerProcess(flags, tmp_path_factory.mktemp("embeddings") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def official(server: ServerProcess) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x") as client:
        yield client


@pytest.mark.parametrize("more", [{}, {"encoding_format": "float"}])
def test_openai_embeds_several_texts(official: Any, more: dict[str, str]) -> None:
    """Without a format the client asks for base64 and decodes it."""
    answer = official.embeddings.create(model="tiny", input=TEXTS, **more)
    code, paris, london = (np.array(item.embedding) for item in answer.data)
    assert [len(v) for v in (code, paris, london)] == [256] * 3
    assert np.allclose([v @ v for v in (code, paris, london)], 1.0, atol=1e-5)
    assert paris @ london > paris @ code
    assert answer.usage.prompt_tokens == sum(len(ids(text)) for text in TEXTS)


def test_openai_embeds_beside_completions_what_it_embeds_alone(official: Any) -> None:
    def complete(i: int) -> str:
        prompt = f"import os\n\ndef f{i}"
        whole = official.completions.create(model="", prompt=prompt, max_tokens=40, temperature=0)
        return str(whole.choices[0].text)

    def embed(text: str) -> list[float]:
        (item,) = official.embeddings.create(model="", input=text).data
        return list(item.embedding)

    texts, alone = [complete(i) for i in range(3)], [embed(text) for text in TEXTS]
    with ThreadPoolExecutor(6) as pool:
        beside = [pool.submit(embed, text) for text in TEXTS]
        again = [pool.submit(complete, i) for i in range(3)]
        assert [future.result() for future in beside] == alone
        assert [future.result() for future in again] == texts


def test_openai_hears_that_a_text_is_too_long(official: Any) -> None:
    patient = official.with_options(max_retries=0)
    with pytest.raises(openai.InternalServerError, match="is too large to process"):
        patient.embeddings.create(model="", input="word " * 600)
