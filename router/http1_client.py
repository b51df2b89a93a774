"""``WorkerClient`` over HTTP/1.1 connections of our own: a pool for each worker, exact aborts, and no other features.

No proxies, no redirects, no cookies, no decompression, no limit on connections. A general client was the largest cost
of a small request through the router, and hides the two things that matter here: when the worker sees us leave, and
whether it can have seen a request that failed.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Any, NamedTuple

from router.http1_connection import Connection
from router.http1_request import Origin, parse_target, request_head
from router.worker_client import Body, Headers, Piece, WorkerAnswer, WorkerBroken, WorkerStream, WorkerUnreachable

# uvicorn in the workers closes an idle connection after 5 s; ours go before, so that none is closed as we write to it.
IDLE_CONNECTION_S = 3.0
# A kept connection that the worker was closing as we wrote to it says so within one round trip and a busy moment on
# either side. Later than this the worker must be taken to have read the request.
STALE_WINDOW_S = 0.25


class Http1WorkerClient:
    """The router's client to all workers; made anywhere, used in one event loop.

    A request on a kept connection that closes within ``STALE_WINDOW_S``, without one byte of an answer, is sent once
    more on a new connection: the worker has most likely not read it.

    Args:
        connect_timeout_s: bound on name lookup, TCP and TLS handshakes together.
        ssl_context: for https workers; by default the system's trust store.
        idle_connection_s: how long an unused connection is kept.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float,
        ssl_context: ssl.SSLContext | None = None,
        idle_connection_s: float = IDLE_CONNECTION_S,
    ) -> None:
        self._connect_timeout_s, self._idle_connection_s = connect_timeout_s, idle_connection_s
        self._ssl_context = ssl_context
        self._idle: dict[Origin, list[Connection]] = {}
        self._connections: dict[Connection, Origin] = {}
        self._is_closed = False
        self._all_gone: asyncio.Future[None] | None = None

    @property
    def num_connections(self) -> int:
        """Open connections, in use or kept."""
        return len(self._connections)

    @property
    def num_idle_connections(self) -> int:
        return sum(map(len, self._idle.values()))

    def post(self, url: str, body: Body, headers: Headers, *, timeout_s: float) -> Coroutine[Any, Any, WorkerAnswer]:
        return self._exchange("POST", url, body, headers, timeout_s)

    def get(self, url: str, headers: Headers, *, timeout_s: float) -> Coroutine[Any, Any, WorkerAnswer]:
        return self._exchange("GET", url, b"", headers, timeout_s)

    def stream(
        self, url: str, body: Body, headers: Headers, *, idle_timeout_s: float
    ) -> AbstractAsyncContextManager[WorkerStream]:
        return _Stream(self, _Request.to("POST", url, body, headers, wants_whole=False), idle_timeout_s)

    async def aclose(self) -> None:
        """Closes every connection, also of exchanges under way; later calls raise WorkerUnreachable."""
        self._is_closed = True
        for connection in list(self._connections):
            connection.abort()
        if self._connections:
            self._all_gone = asyncio.get_running_loop().create_future()
            await self._all_gone

    async def _exchange(self, method: str, url: str, body: Body, headers: Headers, timeout_s: float) -> WorkerAnswer:
        connection = await self._open(_Request.to(method, url, body, headers, wants_whole=True), timeout_s)
        try:
            return WorkerAnswer(connection.status, connection.headers, connection.take_whole())
        finally:
            self._give_back(connection)

    async def _open(self, request: "_Request", timeout_s: float) -> Connection:
        """A connection whose answer is ready, as ``Connection.wait_ready`` has it; to be given back.

        ``timeout_s`` bounds the wait for the answer; where all of it is wanted, connecting and a second attempt too.
        """
        loop = asyncio.get_running_loop()
        began_s, is_second = loop.time(), False
        connection = self._take_idle(request.origin)
        if connection is not None:
            try:
                connection.begin(request.head, request.body, wants_whole=request.wants_whole)
                await connection.wait_ready(timeout_s)
                return connection
            except BaseException as error:
                connection.abort()
                if not isinstance(error, WorkerBroken) or not connection.is_untouched_since(STALE_WINDOW_S):
                    raise
                is_second = True
        end_s = began_s + timeout_s if request.wants_whole else inf
        try:
            connection = await self._connect(request.origin, end_s - loop.time())
        except WorkerUnreachable as error:
            if is_second:
                # True of the second attempt alone: the worker may have read the first.
                raise WorkerBroken("The connection to the worker ended before its answer did.") from error
            raise
        try:
            connection.begin(request.head, request.body, wants_whole=request.wants_whole)
            await connection.wait_ready(min(timeout_s, end_s - loop.time()))
        except BaseException:
            connection.abort()
            raise
        return connection

    def _take_idle(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        while idle:
            # The one used last, so that those that a burst left over get old.
            connection = idle.pop()
            if connection.is_reusable:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, timeout_s: float) -> Connection:
        """Raises: WorkerUnreachable."""
        loop = asyncio.get_running_loop()
        connection = Connection(loop, self._forget)
        try:
            async with asyncio.timeout(min(self._connect_timeout_s, timeout_s)):
                context = self._tls_context() if origin.is_tls else None
                await loop.create_connection(lambda: connection, origin.host, origin.port, ssl=context)
        # UnicodeError: a host that no name lookup takes.
        except (OSError, TimeoutError, UnicodeError) as error:
            connection.abort()
            raise WorkerUnreachable("The worker can't be reached.") from error
        except BaseException:
            connection.abort()
            raise
        if self._is_closed or not connection.is_open:
            connection.abort()
            raise WorkerUnreachable("The worker can't be reached.")
        self._connections[connection] = origin
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context

    def _give_back(self, connection: Connection) -> None:
        """Keeps the connection if it may be used again; otherwise closes it, by which the worker sees us leave."""
        origin = self._connections.get(connection)
        if origin is None or self._is_closed or not connection.is_reusable:
            connection.abort()
            return
        connection.end(self._idle_connection_s)
        self._idle.setdefault(origin, []).append(connection)

    def _forget(self, connection: Connection) -> None:
        origin = self._connections.pop(connection, None)
        if self._all_gone is not None and not self._connections and not self._all_gone.done():
            self._all_gone.set_result(None)
        idle = None if origin is None else self._idle.get(origin)
        if origin is None or idle is None:
            return
        if connection in idle:
            idle.remove(connection)
        if not idle:
            del self._idle[origin]


class _Request(NamedTuple):
    origin: Origin
    head: bytes
    body: list[Piece]
    wants_whole: bool

    @classmethod
    def to(cls, method: str, url: str, body: Body, headers: Headers, *, wants_whole: bool) -> "_Request":
        try:
            target = parse_target(url)
        except ValueError as error:
            raise WorkerUnreachable("The worker's URL can't be used.") from error
        pieces: list[Piece] = body if isinstance(body, list) else [body]
        head = request_head(method, target, headers, sum(map(len, pieces)))
        return cls(target.origin, head, pieces, wants_whole)


class _Stream:
    """An answer that is still arriving, as a context: leaving it before the answer is complete closes the connection.

    ``read`` and ``pump`` must not be used after that.
    """

    status: int
    headers: Mapping[str, str]
    _connection: Connection

    def __init__(self, client: Http1WorkerClient, request: _Request, idle_timeout_s: float) -> None:
        self._client, self._request, self._idle_timeout_s = client, request, idle_timeout_s

    async def __aenter__(self) -> "_Stream":
        connection = self._connection = await self._client._open(self._request, self._idle_timeout_s)
        self.status, self.headers = connection.status, connection.headers
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client._give_back(self._connection)

    def read(self) -> Awaitable[bytes]:
        return self._connection.read(self._idle_timeout_s)

    def pump(self, feed: Callable[[bytes], bool]) -> Awaitable[bool]:
        return self._connection.pump(feed, self._idle_timeout_s)
