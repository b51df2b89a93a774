"""The load generator: HTTP/1.1 by hand on kept-alive sockets, closed loop or paced, every answer verified."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from time import perf_counter
from typing import cast

import httptools

from bench.router.cases import Case
from bench.router.chats import make_tag
from bench.router.tally import Tally

# A round waits so long for the answers that are still missing when its time is over, then counts them as errors.
GRACE_S = 15.0
_numbers = count(1)


class Connection(asyncio.Protocol):
    """One connection to the router; one exchange at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._end(ConnectionError("lost before the answer was complete"))

    def data_received(self, data: bytes) -> None:
        self._now_s = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end(ConnectionError("not HTTP"))
            self.close()

    def on_body(self, piece: bytes) -> None:
        if not self._arrivals_s or self._arrivals_s[-1] != self._now_s:
            self._arrivals_s.append(self._now_s)
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.close()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            if error is None:
                self._waiter.set_result(None)
            else:
                self._waiter.set_exception(error)

    async def exchange(self, head: bytes, tag: bytes, body: bytes, tally: Tally) -> None:
        """Send one request and judge its answer. A failed connection is counted, not raised."""
        self._arrivals_s: list[float] = []
        self._pieces: list[bytes] = []
        self._waiter = self._loop.create_future()
        sent_s = perf_counter()
        self._transport.write(head + body)
        try:
            await self._waiter
        except ConnectionError as error:
            tally.errors[str(error)] += 1
        else:
            # An answer without a body arrives with its head.
            arrivals_s = self._arrivals_s or [self._now_s]
            tally.finish(tag, self._status, b"".join(self._pieces), sent_s, arrivals_s)

    def close(self) -> None:
        self.is_open = False
        self._transport.close()


class Load:
    """Requests of one case to one port, over connections that outlive a warm-up."""

    def __init__(self, port: int, case: Case) -> None:
        self._port, self._case = port, case
        self._template, self._answer = case.body(), case.answer()
        num_bytes = len(self._template.filled(make_tag(0)))
        self._head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nuser-agent: bench\r\naccept: */*\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % (port, num_bytes)
        )
        self._free: deque[Connection] = deque()

    async def open(self) -> None:
        """Open all connections. Raises: OSError."""
        self._free.extend([await self._connect() for _ in range(self._case.concurrency)])

    def close(self) -> None:
        while self._free:
            self._free.popleft().close()

    async def run(self, seconds: float) -> Tally:
        """Send for ``seconds``, then wait for the answers under way."""
        tally = Tally(self._answer, self._case.max_tokens if self._case.is_stream else 0)
        end_s = perf_counter() + seconds
        if self._case.rate_rps is None:
            tasks = {asyncio.create_task(self._user(index, end_s, tally)) for index in range(self._case.concurrency)}
        else:
            tasks = await self._pace(self._case.rate_rps, seconds, tally)
        _, late = await asyncio.wait(tasks, timeout=max(0.0, end_s - perf_counter()) + GRACE_S)
        for task in late:
            tally.errors["no answer"] += 1
            task.cancel()
        for task in tasks - late:
            task.result()
        return tally

    async def _user(self, index: int, end_s: float, tally: Tally) -> None:
        if self._case.is_stream:
            # Streams that start together would have all their tokens together, and be read in one go.
            await asyncio.sleep(0.25 * index / self._case.concurrency)
        while perf_counter() < end_s:
            await self._one(tally)

    async def _pace(self, rate_rps: float, seconds: float, tally: Tally) -> set[asyncio.Task[None]]:
        # At a random moment of its slot each, or new requests would always meet the tokens of earlier ones.
        moments = random.Random(0)
        start_s, tasks = perf_counter(), set()
        for index in range(int(rate_rps * seconds)):
            due_s = start_s + (index + moments.random()) / rate_rps
            if (wait_s := due_s - perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            tasks.add(asyncio.create_task(self._one(tally)))
        return tasks

    async def _one(self, tally: Tally) -> None:
        connection = self._free.popleft() if self._free else None
        try:
            if connection is None or not connection.is_open:
                connection = await self._connect()
            tag = make_tag(next(_numbers))
            await connection.exchange(self._head, tag, self._template.filled(tag), tally)
        except OSError as error:
            tally.errors[type(error).__name__] += 1
            # A router that refuses connections must not be asked in a tight loop.
            await asyncio.sleep(0.05)
        else:
            self._free.append(connection)

    async def _connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self._port)
        return connection


@asynccontextmanager
async def opened(port: int, case: Case) -> AsyncIterator[Load]:
    """A load with its connections open. Raises: OSError."""
    load = Load(port, case)
    try:
        await load.open()
        yield load
    finally:
        load.close()
