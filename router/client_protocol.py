"""uvicorn's HTTP/1.1 connection of a client, with bounds on how slow and how long a request may arrive.

uvicorn has none: whoever opens a connection and says nothing, or a head without an end, keeps it. Here one timer a
connection looks now and then at what the connection waits for, and since when; a request arms and cancels nothing. A
bound is therefore kept late by up to a quarter of the smallest one, and never early.

Also here, since the connection alone knows: what is not HTTP is refused in the shape of all other errors; a client of
HTTP/1.0, which knows no chunks, gets a stream that ends with its connection; and one that offers another protocol in
passing, as Java's offers HTTP/2, is answered by HTTP/1.1 (uvicorn would lose the request's body).
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from math import inf
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from router.client_cycle import ClientCycle
from wire.errors import BadRequest, HeadTooLarge, RequestTimeout, ServingError

# Heads of clients have a few hundred bytes, with cookies and traces a few thousand; common limits are 8 to 64 KiB.
MAX_HEAD_BYTES = 64 << 10
CHECKS_PER_LIMIT = 4
LISTEN = "tandem.listen"
"""ASGI extension: a function that takes what to call, once, when the client leaves before it has its answer; None
takes that back. Of a client that has left already it calls at once."""
# A client that is ahead of us by this much is stopped.
MAX_UNREAD_BYTES = 64 << 10
# A path that is what it says, as nearly all are: without a query, an escape, or a host before it.
_PLAIN_PATH = re.compile(rb"/[A-Za-z0-9/._~-]*")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Seconds that a connection may wait for each thing that only its client can do."""

    head_s: float
    """From the connection's or the request's beginning to the end of its head."""
    body_s: float
    """From there to the end of the body."""
    idle_s: float
    """From the end of an answer to the next request."""


class ClientProtocol(HttpToolsProtocol):
    """One connection. uvicorn makes it, with ``limits`` bound beforehand."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ClientLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._interval_s = min(limits.head_s, limits.body_s, limits.idle_s) / CHECKS_PER_LIMIT
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: object = None
        """What the connection waited for at the last look; None: something has come since."""
        self._since_s = 0.0
        self._answering: ClientCycle | None = None
        """The request whose answer is made, or was made last; those behind it in line are not begun."""
        self._on_left: Callable[[], None] | None = None
        self._extensions: dict[str, Any] = {LISTEN: self._listen}
        self._num_overhead_bytes = 0
        """Received since the last piece of a body or the end of a request: of a head, or of chunks' framing."""

    # --- asyncio ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since_s = self.loop.time()
        self._timer = self.loop.call_later(self._interval_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            # uvicorn tells the last request in line alone.
            cycle.disconnected = True
            cycle.message_event.set()
            if self._on_left is not None:
                self._on_left()
        self._extensions.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_overhead_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            logger.info("a client sent what is not HTTP/1.1")
            self._refuse(BadRequest("The request is not HTTP/1.1."))
        if self._num_overhead_bytes > MAX_HEAD_BYTES:
            self._refuse(HeadTooLarge(f"The request's head is longer than {MAX_HEAD_BYTES} bytes."))

    # --- httptools ---

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            # The parser takes what follows for another protocol's: see ``_decline``.
            return
        version, scope = self.parser.get_http_version(), self.scope
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["raw_path"], scope["path"], scope["query_string"] = _split_url(self.url)
        scope["extensions"] = self._extensions
        is_plain = version == "1.1" and scope["method"] != "HEAD"
        cycle = ClientCycle(
            is_plain=is_plain,
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if version != "1.1":
            cycle.send = _ClosingSend(cycle).send  # type: ignore[method-assign]
        before, self.cycle = cast("ClientCycle | None", self.cycle), cycle
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        self._num_overhead_bytes = 0
        cycle = cast("ClientCycle", self.cycle)
        if self.parser.should_upgrade() or cycle.response_complete:
            return
        cycle.add(body)
        if cycle.num_unread_bytes > MAX_UNREAD_BYTES:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._num_overhead_bytes = 0
        if self.parser.should_upgrade():
            return
        self._awaited = None
        # Also where an answer is over already, as uvicorn's own does not: what the client still owes must be known.
        self.cycle.more_body = False
        self.cycle.message_event.set()

    # --- uvicorn ---

    def _listen(self, on_left: Callable[[], None] | None) -> None:
        """For the application, which answers one request of a connection at a time (``LISTEN``)."""
        self._on_left = on_left
        if on_left is not None and self._answering is not None and self._answering.disconnected:
            on_left()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cast("ClientCycle", cycle)
        task = self.loop.create_task(self._answering.run(app, self.tasks))
        self.tasks.add(task)
        self._answering.task = task

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
        else:
            # Without uvicorn's timer for unused connections, which would be armed and cancelled for each request.
            self.server_state.total_requests += 1
            self.flow.resume_reading()

    # --- other protocols ---

    def _decline(self, rest: bytes) -> None:
        """Parse the request again, as if it offered no other protocol, and what came after its head."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        self.parser = httptools.HttpRequestParser(self)
        if method == b"CONNECT":
            self._refuse(BadRequest("This is no proxy."))
            return
        lines = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.data_received(b"\r\n".join([method + b" " + self.url + b" HTTP/" + version, *lines, b"", rest]))

    # --- waiting ---

    def _look(self) -> None:
        now_s, (awaited, limit_s, is_unasked) = self.loop.time(), self._what_is_awaited()
        if awaited is not self._awaited or limit_s == inf:
            self._awaited, self._since_s = awaited, now_s
        left_s = self._since_s + limit_s - now_s
        if left_s > 0:
            self._timer = self.loop.call_later(min(self._interval_s, left_s), self._look)
            return
        self._timer = None
        if is_unasked:
            self.transport.close()
        else:
            self._refuse(RequestTimeout("The request did not arrive in time."))

    def _what_is_awaited(self) -> tuple[object, float, bool]:
        """What the client owes: an object that stays the same meanwhile, for how long, and whether it asked nothing."""
        limits = self._limits
        # uvicorn's own types don't say that there is neither before the first request.
        cycle, scope = cast("RequestResponseCycle | None", self.cycle), cast("dict[str, Any] | None", self.scope)
        if cycle is not None and (cycle.more_body or not cycle.response_complete):
            # With requests in line, or as much read as the application has asked for, the client is not late.
            waits_for_us = self.pipeline or self.flow.read_paused or not cycle.more_body
            is_ours = not cycle.response_complete and waits_for_us
            return (None, inf, False) if is_ours else (cycle, limits.body_s, False)
        if scope is None:
            return None, limits.head_s, True
        if "method" not in scope:
            return scope, limits.head_s, False
        return cycle, limits.idle_s, True

    def _refuse(self, error: ServingError) -> None:
        """Say what is wrong, unless an answer has begun already, and close."""
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete or not (cycle.response_started or self.pipeline):
            body = json.dumps(error.openai_body()).encode()
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def _split_url(url: bytes) -> tuple[bytes, str, bytes]:
    """The path as it was sent, what it says, and the query."""
    if _PLAIN_PATH.fullmatch(url):
        return url, url.decode("ascii"), b""
    parts = httptools.parse_url(url)
    return parts.path, unquote(parts.path.decode("ascii")), parts.query or b""


class _ClosingSend:
    """``send`` to a client of HTTP/1.0 or older: one of unknown length goes out bare, up to the connection's end."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._send = cycle, cycle.send
        self._is_bare = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._is_bare = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if self._is_bare:
                self._cycle.chunked_encoding = False
        elif self._is_bare:
            # uvicorn checks the body against the length that was promised, which is that of this piece here.
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)
