"""A wrong request is answered at once in OpenAI's shape, and no worker hears of it."""

import json
from typing import Any

import httpx
import pytest

from tests.integration.router.conftest import CHAT, TEXT, Cluster

MAX_BODY_BYTES = 100_000


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"max_body_bytes": MAX_BODY_BYTES}


def check_error(answer: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["param"] == param
    return error


def check_unheard(cluster: Cluster) -> None:
    assert [worker.bodies for worker in [*cluster.prefills, *cluster.decodes]] == [[]] * 4


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'"hi"', None),
        (b"{}", "prompt"),
        (b'{"prompt":"\xff"}', None),
        (b'{"prompt":"hi","temperature":NaN}', None),
        (b'{"prompt":"hi","x":[Infinity]}', None),
        (b'{"prompt":"\\ud800"}', None),
        (b'{"prompt":"hi","prompt":"ho"}', "prompt"),
        (b'{"prompt":"hi","max_tokens":5,"max_token\\u0073":6}', "max_tokens"),
        (b'{"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}", None),
        (b'{"prompt":"hi","kv_transfer_params":null}', "kv_transfer_params"),
        (b'{"prompt":"hi","kv_transfer_param\\u0073":{"do_remote_prefill":true}}', "kv_transfer_params"),
        (b'{"prompt":"hi","\\u006bv_transfer_params":{}}', "kv_transfer_params"),
        (b'{"prompt":"hi","ec_transfer_params":{}}', "ec_transfer_params"),
        (b'{"prompt":"hi","vllm_xargs":{"kv_transfer_params":"{}"}}', "vllm_xargs"),
        (b'{"prompt":"hi","max_tokens":-1}', "max_tokens"),
        (b'{"prompt":"hi","max_tokens":8193}', "max_tokens"),
        (b'{"prompt":"hi","stream_options":{"include_usage":true}}', "stream_options"),
    ],
)
async def test_a_bad_body_is_a_400(cluster: Cluster, raw: bytes, param: str | None) -> None:
    check_error(await cluster.http.post("/v1/completions", content=raw), 400, param)
    check_unheard(cluster)


async def test_an_image_is_a_400(cluster: Cluster) -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    body = CHAT | {"messages": [{"role": "user", "content": content}]}
    error = check_error(await cluster.http.post("/v1/chat/completions", json=body), 400, "messages")
    assert "text" in error["message"]
    check_unheard(cluster)


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
async def test_an_unknown_model_is_a_404(cluster: Cluster, path: str, body: dict[str, Any]) -> None:
    error = check_error(await cluster.http.post(path, json=body | {"model": "gpt-9"}), 404, "model")
    assert error["code"] == "model_not_found"
    check_unheard(cluster)


async def test_a_body_over_the_limit_is_a_413_and_one_at_the_limit_passes(cluster: Cluster) -> None:
    frame = len(json.dumps(TEXT | {"prompt": ""}).encode())
    raw = json.dumps(TEXT | {"prompt": "x" * (MAX_BODY_BYTES - frame)}).encode()
    assert len(raw) == MAX_BODY_BYTES
    assert (await cluster.http.post("/v1/completions", content=raw)).status_code == 200
    check_error(await cluster.http.post("/v1/completions", content=raw + b" "), 413)


async def test_a_body_of_undeclared_length_is_limited_too(cluster: Cluster) -> None:
    async def pieces() -> Any:
        for _ in range(12):
            yield b" " * 10_000

    check_error(await cluster.http.post("/v1/completions", content=pieces()), 413)
    check_unheard(cluster)


async def test_unknown_routes_and_methods_have_openai_shaped_errors(cluster: Cluster) -> None:
    check_error(await cluster.http.post("/v1/nothing", json={}), 404)
    check_error(await cluster.http.get("/v1/completions"), 405)
    check_error(await cluster.http.post("/ready"), 405)


async def test_errors_carry_the_request_id(cluster: Cluster) -> None:
    answer = await cluster.http.post("/v1/completions", content=b"{", headers={"x-request-id": "mine-2"})
    assert answer.headers["x-request-id"] == "mine-2"


async def test_a_refusal_is_counted_by_its_code(cluster: Cluster) -> None:
    await cluster.http.post("/v1/completions", content=b"{")
    counted = 'tandem_router_requests_total{code="400",endpoint="completions",model="none",path="none"}'
    assert await cluster.metric(counted) == 1
