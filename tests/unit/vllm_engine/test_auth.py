"""With a cluster token, a worker answers its router only; health and metrics stay open."""

import json
from typing import Any

import pytest

from vllm_engine.auth import OPEN_PATHS, ClusterAuth

TOKEN = "cluster token of the unit tests"


async def answered(path: str, *headers: tuple[bytes, bytes], kind: str = "http") -> list[Any]:
    """What the client gets; an empty list when the request went through."""
    sent: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        pass

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a stranger's body is not read")

    await ClusterAuth(inner, TOKEN)({"type": kind, "path": path, "headers": list(headers)}, receive, send)
    return sent


async def test_the_router_s_token_opens_every_route() -> None:
    assert await answered("/v1/completions", (b"authorization", f"Bearer {TOKEN}".encode())) == []


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
async def test_health_and_metrics_are_open(path: str) -> None:
    assert await answered(path) == []


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer guess")],
        [(b"authorization", TOKEN.encode())],
        [(b"authorization", f"bearer {TOKEN}".encode())],
        [(b"authorization", f"Bearer {TOKEN} ".encode())],
        [(b"authorization", b"\xff\xfe")],
        [(b"x-authorization", f"Bearer {TOKEN}".encode())],
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/tandem/release", "/health/", "/metrics/x"])
async def test_a_stranger_is_refused_in_openai_s_shape(path: str, headers: list[tuple[bytes, bytes]]) -> None:
    start, body = await answered(path, *headers)
    assert start["status"] == 401
    assert json.loads(body["body"])["error"]["type"] == "authentication_error"
    assert TOKEN not in body["body"].decode()


async def test_the_server_s_own_start_and_end_pass() -> None:
    assert await answered("", kind="lifespan") == []
