"""The answer to the client over ASGI: a whole body, or a stream that may have to end with an error event."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import suppress
from types import coroutine
from typing import Any, cast

from starlette.types import Message, Send

from router.context import RequestContext
from router.drain import Draining
from router.worker_client import WorkerAnswer, WorkerBroken
from wire.errors import ServingError

# What a worker may say about its answer to the client. The rest (server, connection, cookies) stays inside.
RELAYED_HEADERS = ("content-type", "cache-control", "retry-after")


# How vLLM's own streams begin, for those that have to begin before a worker says anything.
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8"}
JSON_HEADERS = {"content-type": "application/json"}
PING = b": ping\n\n"


class Reply:
    """Writes one response; marks in the context how far it is and when the first byte of content left."""

    _pinging: asyncio.Task[None] | None = None
    """The last ping, on its way or there."""

    def __init__(self, ctx: RequestContext, send: Send, clock: Callable[[], float]) -> None:
        self._ctx, self._send, self._clock = ctx, send, clock
        self._unsent: Awaitable[None] | None = None
        self.last_piece = self._piece_before = b""
        """The newest bytes of an answer."""

    async def whole(
        self, status: int, headers: Mapping[str, str], body: bytes, extra: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """The complete response at once; headers are cut to the allow-list, ``extra`` come on top.

        Raises:
            WorkerBroken: pings have begun a stream.
        """
        ctx = self._ctx
        if ctx.is_head_sent:
            raise WorkerBroken("The worker's answer is no stream, though one was asked for.")
        ctx.is_head_sent, ctx.is_content_sent, ctx.first_byte_s = True, True, self._clock()
        self.last_piece = body
        await self._send(self._head(status, headers, [(b"content-length", str(len(body)).encode()), *extra]))
        await self._send(_body(body, more=False))

    async def piece(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        """The next bytes of a stream; the first call sends the head."""
        ctx = self._ctx
        if not ctx.is_content_sent:
            ctx.is_content_sent, ctx.first_byte_s = True, self._clock()
            if not ctx.is_head_sent:
                ctx.is_head_sent = True
                await self._send(self._head(status, headers, []))
            elif self._pinging is not None:
                await self._pinging
        self._piece_before, self.last_piece = self.last_piece, data
        await self._send(_body(data, more=True))

    def push(self, data: bytes) -> bool:
        """The next bytes of a stream whose first ``piece`` is sent, at once; False: ``drain`` before the next.

        What a task would do with the coroutine of the server's ``send``: run it up to where it waits, if it does.
        """
        self._piece_before, self.last_piece = self.last_piece, data
        sending = cast("Coroutine[Any, Any, None]", self._send(_body(data, more=True)))
        try:
            waits_for = sending.send(None)
        except StopIteration:
            return True
        self._unsent = _rest(sending, waits_for)
        return False

    async def drain(self) -> None:
        """Until the client has taken what ``push`` could not send."""
        if self._unsent is not None:
            unsent, self._unsent = self._unsent, None
            await unsent

    async def finish(self) -> None:
        """Ends a stream."""
        await self._send(_body(b"", more=False))

    async def refuse(self, answer: WorkerAnswer) -> None:
        """A worker's refusal of the request, in the shape of the client's API; the only event of a stream of pings."""
        self._ctx.note_refusal(answer.status)
        errors = self._ctx.endpoint.errors
        if self._ctx.is_head_sent:
            await self._end_with(errors.only_event(answer))
            return
        body = errors.of_worker(answer)
        headers = answer.headers if body is answer.body else {**answer.headers, **JSON_HEADERS}
        await self.whole(answer.status, headers, body)

    async def fail(self, error: ServingError) -> None:
        """The error as the whole response, or as the last event of a stream that has started."""
        self._ctx.note_failure(error)
        errors = self._ctx.endpoint.errors
        if self._ctx.is_head_sent:
            await self._end_with(errors.last_event(error, self.last_piece))
            return
        extra = []
        if error.retry_after_s is not None:
            extra.append((b"retry-after", str(error.retry_after_s).encode()))
        if isinstance(error, Draining):
            extra.append((b"connection", b"close"))
        await self.whole(error.status, JSON_HEADERS, errors.whole(error), extra)

    @property
    def end(self) -> bytes:
        """The last bytes sent: all of a whole answer, or of a stream the last two pieces of whole events."""
        return self._piece_before + self.last_piece if self._piece_before else self.last_piece

    @property
    def may_ping(self) -> bool:
        """Nothing of the content has been sent, so a comment lands in nothing's middle."""
        return not self._ctx.is_content_sent

    def ping(self) -> bool:
        """Send a comment, and the head of a stream before the first one, in the background. Needs ``may_ping``.

        False, and nothing is done, while the last one is still on its way.
        """
        if self._pinging is not None and not self._pinging.done():
            return False
        is_first, self._ctx.is_head_sent = not self._ctx.is_head_sent, True
        self._pinging = asyncio.create_task(self._ping(is_first))
        return True

    async def _ping(self, is_first: bool) -> None:
        # Gone clients make some servers raise here. Whoever watches the connection ends the request.
        with suppress(OSError):
            if is_first:
                await self._send(self._head(200, STREAM_HEADERS, []))
            await self._send(_body(PING, more=True))

    async def _end_with(self, event: bytes) -> None:
        self._ctx.is_content_sent = True
        if self._pinging is not None:
            await self._pinging
        await self.drain()
        await self._send(_body(event, more=False))

    def _head(self, status: int, headers: Mapping[str, str], extra: list[tuple[bytes, bytes]]) -> Message:
        self._ctx.status = status
        relayed = [(name.encode(), headers[name].encode("latin-1")) for name in RELAYED_HEADERS if name in headers]
        request_id = self._ctx.request_id.encode()
        mine = [(name, request_id) for name in self._ctx.endpoint.id_headers]
        return {"type": "http.response.start", "status": status, "headers": relayed + mine + extra}


def _body(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


@coroutine
def _rest(begun: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """The rest of a coroutine that was run up to where it waits, to be awaited."""
    yield waits_for
    yield from begun
