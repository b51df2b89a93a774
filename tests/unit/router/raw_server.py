"""A worker that answers with whatever bytes a test gives it, over real sockets, and records what it saw."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from router.http1_client import Http1WorkerClient
from router.relay import read_whole

Behaviour = Callable[["Visit"], Coroutine[Any, Any, None]]


@dataclass
class Visit:
    """One request, and the connection that it came on."""

    number: int
    """Of this request on its connection, from 0."""
    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hang_up(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclass
class RawServer:
    """``behaviour`` answers each request, unless its client closes before that."""

    behaviour: Behaviour
    port: int = 0
    num_connections: int = 0
    visits: list[Visit] = field(default_factory=list)
    left_at: list[float] = field(default_factory=list)
    """Loop times at which a client closed before its answer was given."""

    def url(self, path: str = "/v1/completions") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        number = 0
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(content_length(head))
                self.visits.append(Visit(number, head, body, reader, writer))
                number += 1
                await self._answer(self.visits[-1])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, visit: Visit) -> None:
        work = asyncio.create_task(self.behaviour(visit))
        left = asyncio.create_task(self._wait_until_left(visit.reader))
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            self.left_at.append(asyncio.get_running_loop().time())
        for task in (work, left):
            task.cancel()
        await asyncio.wait((work, left))
        if not work.cancelled() and isinstance(work.exception(), Exception):
            raise ConnectionError

    @staticmethod
    async def _wait_until_left(reader: asyncio.StreamReader) -> None:
        while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def content_length(head: bytes) -> int:
    lines = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return int(lines[0].split(b":")[1]) if lines else 0


@asynccontextmanager
async def raw_server(behaviour: Behaviour) -> AsyncIterator[RawServer]:
    state = RawServer(behaviour)
    writers: set[asyncio.StreamWriter] = set()

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            await state.serve_one(reader, writer)
        finally:
            writers.discard(writer)

    server = await asyncio.start_server(on_client, "127.0.0.1", 0)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
        for writer in list(writers):
            writer.transport.abort()
        while writers:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def answer(body: bytes, *, extra: bytes = b"", status: bytes = b"200 OK") -> bytes:
    """A whole answer with its length."""
    return b"HTTP/1.1 " + status + b"\r\ncontent-length: %d\r\n" % len(body) + extra + b"\r\n" + body


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


CHUNKS_DONE = b"0\r\n\r\n"


@asynccontextmanager
async def client_to(
    behaviour: Behaviour, idle_connection_s: float = 3.0
) -> AsyncIterator[tuple[Http1WorkerClient, RawServer]]:
    async with raw_server(behaviour) as server:
        client = Http1WorkerClient(connect_timeout_s=5, idle_connection_s=idle_connection_s)
        try:
            yield client, server
        finally:
            await client.aclose()
            assert client.num_connections == client.num_idle_connections == 0


def saying(*pieces: bytes, close: bool = False, gap_s: float = 0.0) -> Behaviour:
    async def behave(visit: Visit) -> None:
        for piece in pieces:
            await visit.say(piece)
            await asyncio.sleep(gap_s)
        if close:
            await visit.hang_up()

    return behave


async def hang(_: Visit) -> None:
    await asyncio.Event().wait()


async def post(client: Http1WorkerClient, server: RawServer, body: bytes = b"{}", timeout_s: float = 10) -> bytes:
    return (await client.post(server.url(), body, {"x-request-id": "r"}, timeout_s=timeout_s)).body


async def streamed(client: Http1WorkerClient, server: RawServer, idle_timeout_s: float = 10) -> bytes:
    async with client.stream(server.url(), b"{}", {}, idle_timeout_s=idle_timeout_s) as stream:
        return await read_whole(stream)
