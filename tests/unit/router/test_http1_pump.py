"""A body that is handed on as it comes: every byte once, in order, at the pace of whoever takes it; real sockets."""

import asyncio
import random
from collections.abc import Callable

import pytest

from router.http1_answer import MAX_BUFFERED_BYTES
from router.http1_client import Http1WorkerClient
from router.worker_client import WorkerBroken, WorkerTimeout
from tests.unit.router.raw_server import CHUNKED_HEAD, CHUNKS_DONE, RawServer, Visit, chunk, client_to, saying

STREAM = (CHUNKED_HEAD, chunk(b"one "), chunk(b"two "), chunk(b"three"), CHUNKS_DONE)


class Taker:
    """Takes pieces, and asks for a pause after each ``pause_every``."""

    def __init__(self, pause_every: int = 0) -> None:
        self.pieces: list[bytes] = []
        self._pause_every = pause_every

    def feed(self, data: bytes) -> bool:
        self.pieces.append(data)
        return not self._pause_every or len(self.pieces) % self._pause_every != 0


async def pumped(
    client: Http1WorkerClient,
    server: RawServer,
    feed: Callable[[bytes], bool],
    *,
    before_s: float,
    idle_timeout_s: float,
) -> None:
    """All of an answer, begun ``before_s`` after its head; each pause lasts 0.2 s."""
    async with client.stream(server.url(), b"", {}, idle_timeout_s=idle_timeout_s) as stream:
        await asyncio.sleep(before_s)
        is_over = False
        while not is_over:
            is_over = not await stream.pump(feed)
            await asyncio.sleep(0 if is_over else 0.2)


async def test_each_piece_is_handed_on_and_the_end_is_told() -> None:
    taker = Taker()
    async with client_to(saying(*STREAM, gap_s=0.005)) as (client, server):
        async with client.stream(server.url(), b"", {}, idle_timeout_s=5) as stream:
            assert await stream.pump(taker.feed) is False
        assert taker.pieces == [b"one ", b"two ", b"three"]
        assert client.num_idle_connections == 1


async def test_what_has_come_before_is_handed_on_first() -> None:
    taker = Taker()
    async with (
        client_to(saying(b"".join(STREAM))) as (client, server),
        client.stream(server.url(), b"", {}, idle_timeout_s=5) as stream,
    ):
        await asyncio.sleep(0.02)
        assert await stream.pump(taker.feed) is False
    assert b"".join(taker.pieces) == b"one two three"


@pytest.mark.parametrize("pause_every", [1, 2, 7])
async def test_a_pause_holds_the_worker_back_and_loses_nothing(pause_every: int) -> None:
    draw = random.Random(pause_every)
    pieces = [draw.randbytes(draw.randrange(1, 40_000)) for _ in range(100)]
    taker, num_pauses = Taker(pause_every), 0
    async with client_to(saying(CHUNKED_HEAD, *map(chunk, pieces), CHUNKS_DONE)) as (client, server):
        async with client.stream(server.url(), b"", {}, idle_timeout_s=5) as stream:
            while await stream.pump(taker.feed):
                num_pauses += 1
                num_taken = len(taker.pieces)
                await asyncio.sleep(0.002)
                assert len(taker.pieces) == num_taken
        assert b"".join(taker.pieces) == b"".join(pieces)
        assert num_pauses == len(taker.pieces) // pause_every
        assert client.num_idle_connections == 1


async def test_while_paused_little_is_kept() -> None:
    taker, sent = Taker(pause_every=1), 0

    async def behave(visit: Visit) -> None:
        nonlocal sent
        await visit.say(CHUNKED_HEAD)
        for _ in range(400):
            await visit.say(chunk(bytes(100_000)))
            sent += 100_000
        await visit.say(CHUNKS_DONE)

    async with client_to(behave) as (client, server), client.stream(server.url(), b"", {}, idle_timeout_s=5) as stream:
        assert await stream.pump(taker.feed)
        await asyncio.sleep(0.1)
        # What is on its way lies in the two sockets' buffers; 40 MB would not.
        assert sent < 20_000_000
        while await stream.pump(taker.feed):
            assert len(taker.pieces[-1]) <= 2 * MAX_BUFFERED_BYTES
        assert sum(map(len, taker.pieces)) == 40_000_000


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_what_the_taker_raises_ends_the_exchange(at: int) -> None:
    taken: list[bytes] = []

    def feed(data: bytes) -> bool:
        taken.append(data)
        if len(taken) > at:
            raise LookupError("not this")
        return True

    async with client_to(saying(*STREAM, gap_s=0.005)) as (client, server):
        with pytest.raises(LookupError, match="not this"):
            async with client.stream(server.url(), b"", {}, idle_timeout_s=5) as stream:
                await stream.pump(feed)
        assert len(taken) == at + 1
        assert client.num_idle_connections == 0


async def test_what_it_raises_at_a_complete_answer_counts_too() -> None:
    def feed(_: bytes) -> bool:
        raise LookupError("not this")

    async with client_to(saying(b"".join(STREAM))) as (client, server):
        with pytest.raises(LookupError):
            await pumped(client, server, feed, before_s=0.02, idle_timeout_s=5)
        assert client.num_idle_connections == 0


async def test_silence_is_bounded_from_the_last_piece_and_not_while_paused() -> None:
    taker = Taker(pause_every=3)

    async def behave(visit: Visit) -> None:
        await visit.say(CHUNKED_HEAD)
        for _ in range(6):
            await visit.say(chunk(b"x"))
            await asyncio.sleep(0.06)
        await asyncio.Event().wait()

    async with client_to(behave) as (client, server):
        with pytest.raises(WorkerTimeout):
            await pumped(client, server, taker.feed, before_s=0, idle_timeout_s=0.15)
        assert b"".join(taker.pieces) == b"x" * 6


async def test_a_broken_body_is_told_after_what_came_of_it() -> None:
    taker = Taker()
    async with client_to(saying(CHUNKED_HEAD, chunk(b"one "), close=True, gap_s=0.005)) as (client, server):
        with pytest.raises(WorkerBroken):
            async with client.stream(server.url(), b"", {}, idle_timeout_s=5) as stream:
                await stream.pump(taker.feed)
        assert taker.pieces == [b"one "]


async def test_nothing_is_handed_on_after_a_cancellation() -> None:
    taker = Taker()
    async with client_to(saying(CHUNKED_HEAD, chunk(b"one "), *([chunk(b"more")] * 50), gap_s=0.003)) as (
        client,
        server,
    ):

        async def run() -> None:
            async with client.stream(server.url(), b"", {}, idle_timeout_s=5) as stream:
                await stream.pump(taker.feed)

        task = asyncio.create_task(run())
        while not taker.pieces:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        num_taken = len(taker.pieces)
        await asyncio.sleep(0.03)
        assert len(taker.pieces) == num_taken
        assert client.num_connections == 0
