"""Clients that speak bad, slow or old HTTP, over sockets of their own."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integration.router.conftest import TEXT, Cluster
from tests.integration.router.serving import eventually

SOON_S = 15.0
HEADER_TIMEOUT_S, BODY_TIMEOUT_S, KEEP_ALIVE_S = 0.4, 0.8, 0.4


@pytest.fixture
def settings() -> dict[str, Any]:
    return {
        "client_header_timeout_s": HEADER_TIMEOUT_S,
        "client_body_timeout_s": BODY_TIMEOUT_S,
        "client_keep_alive_s": KEEP_ALIVE_S,
    }


@asynccontextmanager
async def connection(cluster: Cluster) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.http.base_url.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.wait([asyncio.create_task(writer.wait_closed())])


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the router closes."""
    async with asyncio.timeout(SOON_S):
        return await reader.read()


async def say(cluster: Cluster, data: bytes) -> bytes:
    """Everything that the router has to say to ``data``."""
    async with connection(cluster) as (reader, writer):
        writer.write(data)
        return await all_of(reader)


def post(body: dict[str, Any], *headers: str, version: str = "1.1") -> bytes:
    raw = json.dumps(body).encode()
    lines = ["POST /v1/completions HTTP/" + version, "host: x", f"content-length: {len(raw)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + raw


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{} ",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"CONNECT somewhere:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_a_400_and_no_worker_hears_of_it(cluster: Cluster, data: bytes) -> None:
    answer = await say(cluster, data)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body_of(answer))["error"]["code"] == 400
    assert [worker.bodies for worker in [*cluster.prefills, *cluster.decodes]] == [[]] * 4


@pytest.mark.parametrize(
    ("data", "limit_s", "status"),
    [
        (b"", HEADER_TIMEOUT_S, b""),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n", HEADER_TIMEOUT_S, b"HTTP/1.1 408 "),
        (post(TEXT)[:-1], BODY_TIMEOUT_S, b"HTTP/1.1 408 "),
        (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", KEEP_ALIVE_S, b"HTTP/1.1 200 "),
    ],
    ids=["nothing", "head", "body", "next request"],
)
async def test_a_client_that_never_finishes_is_cut(
    cluster: Cluster, data: bytes, limit_s: float, status: bytes
) -> None:
    began_s = time.monotonic()
    assert (await say(cluster, data)).startswith(status)
    assert time.monotonic() - began_s >= limit_s
    assert await cluster.metric("tandem_router_requests_in_flight") == 0


async def test_a_request_that_is_being_served_is_not_cut(cluster: Cluster) -> None:
    for decode in cluster.decodes:
        decode.faults.append("hold_midway")
    async with connection(cluster) as (reader, writer):
        writer.write(post(TEXT | {"stream": True}))
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(3 * BODY_TIMEOUT_S)
        for decode in cluster.decodes:
            decode.gate.set()
        assert b"data: [DONE]\n\n" in await all_of(reader)


@pytest.mark.parametrize("version", ["1.0", "0.9"])
async def test_an_old_client_gets_a_stream_without_chunks_that_ends_with_the_connection(
    cluster: Cluster, version: str
) -> None:
    answer = await say(cluster, post(TEXT | {"stream": True}, version=version))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in answer.lower()
    assert body_of(answer) == b"".join(cluster.decode.pieces)


async def test_an_old_client_gets_a_whole_answer_with_its_length(cluster: Cluster) -> None:
    answer = await say(cluster, post(TEXT, version="1.0"))
    assert f"content-length: {len(cluster.decode.whole)}\r\n".encode() in answer
    assert body_of(answer) == cluster.decode.whole


async def test_an_old_client_that_leaves_ends_its_request(cluster: Cluster) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.decode.faults.append("hang_midway")
    async with connection(cluster) as (reader, writer):
        writer.write(post(TEXT | {"stream": True}, version="1.0"))
        await reader.readuntil(b"\n\n")
    await eventually(lambda: cluster.decode.num_aborted == 1)


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
async def test_a_client_that_offers_another_protocol_is_served_by_this_one(cluster: Cluster, upgrade: str) -> None:
    """As Java's client does with each request, body and all, on one connection."""
    offer = ("connection: Upgrade, HTTP2-Settings", f"upgrade: {upgrade}", "http2-settings: AAEAAEAA")
    async with connection(cluster) as (reader, writer):
        for _ in range(2):
            data = post(TEXT, *offer)
            writer.write(data[:-5])
            await asyncio.sleep(0.01)
            writer.write(data[-5:])
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SOON_S)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(len(cluster.decode.whole)) == cluster.decode.whole


async def test_requests_sent_ahead_are_answered_in_turn(cluster: Cluster) -> None:
    answer = await say(cluster, post(TEXT) * 3 + post(TEXT | {"n": 0}) + post(TEXT))
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"200", b"200", b"400", b"200"]


async def test_a_client_may_ask_to_be_told_before_it_sends_its_body(cluster: Cluster) -> None:
    data = post(TEXT, "expect: 100-continue")
    head, _, body = data.partition(b"\r\n\r\n")
    async with connection(cluster) as (reader, writer):
        writer.write(head + b"\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SOON_S) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await all_of(reader)).startswith(b"HTTP/1.1 200 ")


async def test_a_head_without_an_end_is_refused_before_it_fills_the_memory(cluster: Cluster) -> None:
    async with connection(cluster) as (reader, writer):
        # In steps, so that the router has read all of it when it closes: else its answer could get lost.
        writer.write(b"GET /health HTTP/1.1\r\nx: ")
        for _ in range(7):
            await asyncio.sleep(0.02)
            writer.write(b"y" * 10_000)
        assert (await all_of(reader)).startswith(b"HTTP/1.1 431 ")
