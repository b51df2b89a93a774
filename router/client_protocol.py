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
from dataclasses import dataclass
from http import HTTPStatus
from math import inf
from typing import Any, cast

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from wire.errors import BadRequest, HeadTooLarge, RequestTimeout, ServingError

# Heads of clients have a few hundred bytes, with cookies and traces a few thousand; common limits are 8 to 64 KiB.
MAX_HEAD_BYTES = 64 << 10
CHECKS_PER_LIMIT = 4

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
        super().on_headers_complete()
        if self.scope["http_version"] != "1.1":
            self.cycle.send = _ClosingSend(self.cycle).send  # type: ignore[method-assign]

    def on_body(self, body: bytes) -> None:
        self._num_overhead_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_overhead_bytes = 0
        if self.parser.should_upgrade():
            return
        self._awaited = None
        # Also where an answer is over already, as uvicorn's own does not: what the client still owes must be known.
        self.cycle.more_body = False
        self.cycle.message_event.set()

    # --- uvicorn ---

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
