"""uvicorn's one request and its answer, made cheaper where a small request spends its time, and a little truer.

The head of an answer leaves with the first of its body, in one write, as ASGI has it; a body that came in pieces is
joined once.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from router.answer_head import Header, answer_head

# From here on copying a body costs more than a second entry in the transport's queue.
MAX_JOINED_BYTES = 64 << 10


class ClientCycle(RequestResponseCycle):
    """One request. As ``uvicorn``'s, which does what is rare: answers to HEAD, and to HTTP/1.0."""

    def __init__(self, *, is_plain: bool, **rest: Any) -> None:
        super().__init__(**rest)
        self._is_plain = is_plain
        self._pieces: list[bytes] = []
        self.num_unread_bytes = 0
        self._head: bytes | None = None
        self.task: asyncio.Task[None] | None = None
        """In which ``run`` runs."""

    async def run(self, app: ASGIApp, tasks: set[asyncio.Task[None]]) -> None:
        """Have the application answer; leaves ``tasks``, without the callback in another turn that uvicorn asks for."""
        try:
            await self.run_asgi(app)  # type: ignore[arg-type]
        finally:
            if self.task is not None:
                tasks.discard(self.task)

    # --- what the connection tells ---

    def add(self, piece: bytes) -> None:
        """More of the request's body."""
        self._pieces.append(piece)
        self.num_unread_bytes += len(piece)

    # --- ASGI ---

    async def receive(self) -> Any:
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            if not self.message_event.is_set():
                await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        pieces, self._pieces, self.num_unread_bytes = self._pieces, [], 0
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Any) -> None:
        if not self._is_plain:
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.body" and self.response_started and not self.response_complete:
            self._send_body(message.get("body", b""), message.get("more_body", False))
        elif kind == "http.response.start" and not self.response_started:
            self._head = self._head_of(message["status"], message.get("headers", ()))
            self.response_started, self.waiting_for_100_continue = True, False
        else:
            raise RuntimeError(f"an answer can't go on with {kind!r} here")

    def _head_of(self, status: int, headers: Iterable[Header]) -> bytes:
        head = answer_head(status, self.default_headers, headers, keep_alive=self.keep_alive)
        self.chunked_encoding, self.keep_alive = head.is_chunked, head.keeps_connection
        self.expected_content_length = head.num_body_bytes or 0
        return head.data

    def _send_body(self, body: bytes, more: bool) -> None:
        head, self._head = self._head or b"", None
        if self.chunked_encoding:
            chunk = b"%b%x\r\n%b\r\n" % (head, len(body), body) if body else head
            data = chunk if more else chunk + b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (self.expected_content_length and not more):
                raise RuntimeError("the answer's body is not as long as its head said")
            data = body
            if len(body) <= MAX_JOINED_BYTES:
                data = head + body
            elif head:
                self.transport.write(head)
        if data:
            self.transport.write(data)
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
