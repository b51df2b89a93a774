"""The answer to the client over ASGI: a whole body, or a stream that may have to end with an error event."""

from collections.abc import Callable, Mapping

from starlette.types import Send

from router.context import RequestContext
from router.worker_client import WorkerAnswer
from wire.errors import ServingError

# What a worker may say about its answer to the client. The rest (server, connection, cookies) stays inside.
RELAYED_HEADERS = ("content-type", "cache-control", "retry-after")
REQUEST_ID_HEADER = b"x-request-id"


class Reply:
    """Writes one response; marks in the context that it started and when the first byte of a body left."""

    def __init__(self, ctx: RequestContext, send: Send, clock: Callable[[], float]) -> None:
        self._ctx, self._send, self._clock = ctx, send, clock
        self.last_piece = b""
        """The newest bytes of a stream."""

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """The complete response at once; headers are cut to the allow-list."""
        await self._start(status, headers, [(b"content-length", str(len(body)).encode())])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def piece(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        """The next bytes of a stream; the first call sends the head."""
        if not self._ctx.is_response_started:
            await self._start(status, headers, [])
        self.last_piece = data
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        """Ends a stream."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, answer: WorkerAnswer) -> None:
        """A worker's refusal of the request, in the shape of the client's API."""
        body = self._ctx.endpoint.errors.of_worker(answer)
        headers = answer.headers if body is answer.body else {**answer.headers, "content-type": "application/json"}
        await self.whole(answer.status, headers, body)

    async def fail(self, error: ServingError) -> None:
        """The error as the whole response, or as the last event of a stream that has started."""
        errors = self._ctx.endpoint.errors
        if self._ctx.is_response_started:
            event = errors.last_event(error, self.last_piece)
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
            return
        headers = {"content-type": "application/json"}
        if error.retry_after_s is not None:
            headers["retry-after"] = str(error.retry_after_s)
        await self.whole(error.status, headers, errors.whole(error))

    async def _start(self, status: int, headers: Mapping[str, str], extra: list[tuple[bytes, bytes]]) -> None:
        ctx = self._ctx
        ctx.is_response_started, ctx.status, ctx.first_byte_s = True, status, self._clock()
        relayed = [(name.encode(), headers[name].encode("latin-1")) for name in RELAYED_HEADERS if name in headers]
        mine = [(REQUEST_ID_HEADER, ctx.request_id.encode()), *extra]
        await self._send({"type": "http.response.start", "status": status, "headers": relayed + mine})
