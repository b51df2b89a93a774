"""Which connection the HTTP client to workers uses, how long it waits, and what it leaves behind; real sockets."""

import asyncio
import random
import tracemalloc

import pytest

from router.http1_answer import MAX_BUFFERED_BYTES
from router.http1_client import Http1WorkerClient
from router.worker_client import WorkerBroken, WorkerTimeout, WorkerUnreachable
from tests.unit.router.raw_server import (
    CHUNKED_HEAD,
    CHUNKS_DONE,
    Visit,
    answer,
    chunk,
    client_to,
    hang,
    post,
    saying,
    streamed,
)

# --- kept connections ---


async def test_a_kept_connection_that_closed_meanwhile_is_not_used() -> None:
    async with client_to(saying(answer(b"hello"), close=True)) as (client, server):
        assert await post(client, server) == b"hello"
        while client.num_connections:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert await post(client, server) == b"hello"
        assert len(server.visits) == 2


async def test_a_kept_connection_that_closes_as_we_write_is_replaced_once() -> None:
    async def behave(visit: Visit) -> None:
        if visit.number == 0:
            await visit.say(answer(b"hello"))
        else:
            visit.reset()

    async with client_to(behave) as (client, server):
        assert [await post(client, server) for _ in range(3)] == [b"hello"] * 3
        assert server.num_connections == 3


async def test_a_kept_connection_that_closes_within_an_answer_is_not_retried() -> None:
    async def behave(visit: Visit) -> None:
        await visit.say(answer(b"hello") if visit.number == 0 else b"H")
        if visit.number:
            await visit.hang_up()

    async with client_to(behave) as (client, server):
        await post(client, server)
        with pytest.raises(WorkerBroken):
            await post(client, server)
        assert len(server.visits) == 2


async def test_a_kept_connection_that_closes_late_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.http1_client.STALE_WINDOW_S", -1.0)

    async def behave(visit: Visit) -> None:
        await (visit.hang_up() if visit.number else visit.say(answer(b"hello")))

    async with client_to(behave) as (client, server):
        await post(client, server)
        with pytest.raises(WorkerBroken):
            await post(client, server)
        assert len(server.visits) == 2


async def test_an_unused_connection_closes_by_itself() -> None:
    async with client_to(saying(answer(b"hello")), idle_connection_s=0.05) as (client, server):
        await post(client, server)
        assert client.num_idle_connections == 1
        while client.num_connections:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_an_answer_before_the_whole_request_was_read_ends_the_connection() -> None:
    has_answer = asyncio.Event()

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"no", status=b"413 Too Large"))
        await writer.drain()
        await has_answer.wait()
        writer.transport.abort()

    server = await asyncio.start_server(on_client, "127.0.0.1", 0)
    client = Http1WorkerClient(connect_timeout_s=5)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        assert (await client.post(url, bytes(64 << 20), {}, timeout_s=20)).status == 413
        assert client.num_idle_connections == 0
        has_answer.set()
        await client.aclose()


# --- unreachable ---


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://[::1]:1/x", "ftp://a/", "http://:80/", "http://a:99999/"]
)
async def test_nothing_there_is_unreachable(url: str) -> None:
    client = Http1WorkerClient(connect_timeout_s=5)
    with pytest.raises(WorkerUnreachable):
        await client.post(url, b"", {}, timeout_s=5)
    await client.aclose()


async def test_plain_http_behind_an_https_url_is_unreachable() -> None:
    async with client_to(saying(answer(b"hello"))) as (client, server):
        with pytest.raises(WorkerUnreachable):
            await client.get(server.url().replace("http:", "https:"), {}, timeout_s=0.3)


async def test_a_closed_client_reaches_nobody() -> None:
    async with client_to(saying(answer(b"hello"))) as (client, server):
        await client.aclose()
        with pytest.raises(WorkerUnreachable):
            await post(client, server)


# --- silence ---


async def test_silence_and_trickles_are_bounded() -> None:
    async def trickle(visit: Visit) -> None:
        for byte in answer(b"x" * 10000):
            await visit.say(bytes([byte]))
            await asyncio.sleep(0.01)

    for behaviour in (hang, trickle):
        async with client_to(behaviour) as (client, server):
            with pytest.raises(WorkerTimeout):
                await post(client, server, timeout_s=0.1)
            with pytest.raises(WorkerTimeout):
                await streamed(client, server, idle_timeout_s=0.1)
            assert client.num_connections == 0


async def test_a_slow_body_is_no_silence() -> None:
    pieces = [CHUNKED_HEAD, *[chunk(b"x")] * 8, CHUNKS_DONE]
    async with client_to(saying(*pieces, gap_s=0.05)) as (client, server):
        assert await streamed(client, server, idle_timeout_s=0.3) == b"x" * 8


async def test_a_stream_that_falls_silent_is_a_timeout() -> None:
    async def behave(visit: Visit) -> None:
        await visit.say(CHUNKED_HEAD + chunk(b"x"))
        await hang(visit)

    async with client_to(behave) as (client, server):
        with pytest.raises(WorkerTimeout):
            await streamed(client, server, idle_timeout_s=0.1)


# --- leaving ---


async def test_leaving_a_stream_closes_its_connection_at_once() -> None:
    async def behave(visit: Visit) -> None:
        await visit.say(CHUNKED_HEAD + chunk(b"x"))
        await hang(visit)

    async with client_to(behave) as (client, server):
        async with client.stream(server.url(), b"{}", {}, idle_timeout_s=10) as stream:
            assert await stream.read() == b"x"
        left_s = asyncio.get_running_loop().time()
        while not server.left_at:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        # 50 ms, of which most is for a busy machine.
        assert server.left_at[0] - left_s < 0.05


async def test_random_cancellations_leave_no_task_and_no_socket_behind() -> None:
    moments = random.Random(11)

    async def behave(visit: Visit) -> None:
        for piece in (CHUNKED_HEAD, chunk(b"hel"), chunk(b"lo") + CHUNKS_DONE):
            await asyncio.sleep(moments.random() / 200)
            await visit.say(piece)

    async with client_to(behave) as (client, server):
        for _ in range(20):
            tasks = [asyncio.create_task(moments.choice((post, streamed))(client, server)) for _ in range(50)]
            for task in tasks:
                await asyncio.sleep(moments.random() / 2000)
                moments.choice(tasks).cancel()
                task.cancel() if moments.random() < 0.5 else None
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(out == b"hello" or isinstance(out, asyncio.CancelledError) for out in outcomes)
        assert client.num_connections == client.num_idle_connections
        assert await post(client, server) == b"hello"


# --- a slow reader ---


async def test_a_slow_reader_stops_the_worker_and_memory_stays_bounded() -> None:
    num_pieces, piece = 1600, bytes(64 << 10)

    async def behave(visit: Visit) -> None:
        visit.writer.transport.set_write_buffer_limits(high=0)
        await visit.say(CHUNKED_HEAD)
        for _ in range(num_pieces):
            await visit.say(chunk(piece))
        await visit.say(CHUNKS_DONE)

    async with client_to(behave) as (client, server):
        num_bytes = longest = 0
        tracemalloc.start()
        try:
            async with client.stream(server.url(), b"{}", {}, idle_timeout_s=10) as stream:
                while data := await stream.read():
                    num_bytes, longest = num_bytes + len(data), max(longest, len(data))
                    if num_bytes < 4 << 20:
                        await asyncio.sleep(0.005)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert num_bytes == num_pieces * len(piece)
        assert longest <= 3 * MAX_BUFFERED_BYTES
        assert peak < 8 << 20
