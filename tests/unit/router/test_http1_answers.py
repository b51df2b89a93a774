"""The HTTP client to workers reads every answer that is HTTP, and no other; against real sockets."""

import pytest

from router.http1_answer import MAX_HEAD_BYTES
from router.worker_client import WorkerBroken
from tests.unit.router.raw_server import (
    CHUNKED_HEAD,
    CHUNKS_DONE,
    Visit,
    answer,
    chunk,
    client_to,
    post,
    saying,
    streamed,
)

# --- good answers ---


@pytest.mark.parametrize(
    "pieces",
    [
        [answer(b"hello")],
        [bytes([byte]) for byte in answer(b"hello")],
        [CHUNKED_HEAD + chunk(b"he"), chunk(b"llo") + CHUNKS_DONE],
        [CHUNKED_HEAD, b"5;ext=1\r\nhel", b"lo\r\n0\r\ntrailer: x\r\n\r\n"],
        [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + answer(b"hello")],
        [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\n", answer(b"hello")],
    ],
    ids=["length", "byte by byte", "chunked", "extension and trailer", "early hints", "interim"],
)
async def test_an_answer_arrives_whole_however_it_is_framed_and_the_connection_is_used_again(
    pieces: list[bytes],
) -> None:
    async with client_to(saying(*pieces)) as (client, server):
        assert await post(client, server) == b"hello"
        assert await streamed(client, server) == b"hello"
        assert server.num_connections == 1


async def test_a_body_without_length_ends_with_the_connection() -> None:
    async with client_to(saying(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", close=True)) as (client, server):
        assert await post(client, server) == b"hello"
        assert await streamed(client, server) == b"hello"
        assert server.num_connections == 2


async def test_the_request_is_what_was_asked_for() -> None:
    async with client_to(saying(answer(b"", status=b"204 No Content", extra=b"X-A: 1\r\nx-a: 2\r\n"))) as (
        client,
        server,
    ):
        url = server.url("/base/v1/x?a=b c")
        got = await client.post(url, b"body", {"authorization": "Bearer t"}, timeout_s=5)
        assert (got.status, got.headers["x-a"], got.body) == (204, "1, 2", b"")
        await client.get(url, {}, timeout_s=5)
    first, second = (visit.head.split(b"\r\n") for visit in server.visits)
    assert first[0] == b"POST /base/v1/x?a=b%20c HTTP/1.1"
    assert second[0] == b"GET /base/v1/x?a=b%20c HTTP/1.1"
    assert {b"host: 127.0.0.1:%d" % server.port, b"content-length: 4", b"authorization: Bearer t"} < set(first)
    assert b"accept-encoding: identity" in first
    assert not any(line.startswith(b"content-length") for line in second)
    assert server.visits[0].body == b"body"


async def test_a_header_that_would_be_two_is_refused() -> None:
    async with client_to(saying(answer(b""))) as (client, server):
        with pytest.raises(ValueError, match="line break"):
            await client.post(server.url(), b"", {"x-a": "1\r\nx-b: 2"}, timeout_s=5)
        assert server.num_connections == 0


# --- answers that are none ---


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 9999 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        CHUNKED_HEAD + b"5\r\nhel",
        CHUNKED_HEAD + chunk(b"hello"),
        CHUNKED_HEAD + b"zz\r\nhello\r\n",
        CHUNKED_HEAD + b"5\r\nhelloXX0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-a: %s\r\n" % (b"y" * 1000) * (MAX_HEAD_BYTES // 1000 + 1) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx-a: " + b"y" * (2 * MAX_HEAD_BYTES),
        b"HTTP/1.1 100 Continue\r\n\r\n" * MAX_HEAD_BYTES,
        CHUNKED_HEAD + chunk(b"hello") + b"0\r\nx-a: " + b"y" * (16 * MAX_HEAD_BYTES),
    ],
    ids=lambda said: f"{len(said)} {said[:12]!r}...{said[-12:]!r}",
)
async def test_an_answer_that_is_not_whole_http_is_broken(said: bytes) -> None:
    async with client_to(saying(said, close=True)) as (client, server):
        with pytest.raises(WorkerBroken):
            await post(client, server)
        with pytest.raises(WorkerBroken):
            await streamed(client, server)
        assert client.num_connections == 0


async def test_what_arrived_before_the_fault_is_given_out_first() -> None:
    async with client_to(saying(CHUNKED_HEAD + chunk(b"hel"), b"zz\r\n")) as (client, server):
        async with client.stream(server.url(), b"{}", {}, idle_timeout_s=10) as stream:
            received = await stream.read()
            with pytest.raises(WorkerBroken):
                await stream.read()
        assert received == b"hel"


async def test_a_reset_is_broken() -> None:
    async def behave(visit: Visit) -> None:
        visit.reset()

    async with client_to(behave) as (client, server):
        with pytest.raises(WorkerBroken):
            await post(client, server)


@pytest.mark.parametrize("extra", [b"H", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"garbage"])
async def test_bytes_after_an_answer_end_the_connections_use(extra: bytes) -> None:
    async with client_to(saying(answer(b"hello") + extra)) as (client, server):
        assert await post(client, server) == b"hello"
        assert await post(client, server) == b"hello"
        assert server.num_connections == 2


async def test_connection_close_is_obeyed() -> None:
    async with client_to(saying(answer(b"hello", extra=b"connection: close\r\n"))) as (client, server):
        assert [await post(client, server) for _ in range(2)] == [b"hello"] * 2
        assert server.num_connections == 2
