"""One HTTP/1.1 connection to a worker, with one exchange on it at a time.

    begin   wait_ready   read ...   end      any number of times; the connection may then be used again
    abort                                    at any moment; the worker sees its client leave

Owns the socket, the parser, the buffer between the two sides, and the one timer. Which connection is used for what is
``router.http1_client``'s business. Single event loop; one task waits at a time.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import cast

import httptools

from router.http1_answer import AnswerReader
from router.worker_client import Piece, WorkerBroken, WorkerTimeout

# From here on joining head and body costs more than a second entry in the transport's queue.
MAX_JOINED_BYTES = 64 << 10


class Connection(AnswerReader, asyncio.Protocol):
    """An open connection.

    Args:
        on_lost: called once when the socket is gone, whoever closed it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lost: Callable[["Connection"], None]) -> None:
        self._loop, self._on_lost = loop, on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._feed: Callable[[bytes], bool] | None = None
        self._feed_timeout_s = inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = self._deadline_s = inf
        self._is_busy = self._is_paused = False
        self._is_clean = True
        self._reset(wants_whole=False)

    def _reset(self, *, wants_whole: bool) -> None:
        self.begin_answer()
        self._wants_whole = wants_whole
        self._begun_s = self._loop.time()
        self._error: Exception | None = None
        self._has_answer_bytes = False

    # --- for the client ---

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """The answer is complete, nothing came after it, and the worker keeps the connection."""
        return self._is_complete and self._is_clean and self.is_open

    def is_untouched_since(self, seconds: float) -> bool:
        """Whether the exchange began at most ``seconds`` ago and not one byte of an answer has come."""
        return not self._has_answer_bytes and self._loop.time() - self._begun_s <= seconds

    def begin(self, head: bytes, body: list[Piece], *, wants_whole: bool) -> None:
        """Send a request; ``wants_whole``: nobody is woken before the answer is complete, nor is it held back."""
        assert self._transport is not None
        assert not self._is_busy
        self._reset(wants_whole=wants_whole)
        self._is_busy = True
        if sum(map(len, body)) <= MAX_JOINED_BYTES:
            self._transport.write(b"".join((head, *body)))
        else:
            self._transport.writelines((head, *body))

    async def wait_ready(self, timeout_s: float) -> None:
        """Until the answer's head is there, or all of it where that is wanted.

        Raises: WorkerBroken, WorkerTimeout.
        """
        if not (self._is_complete if self._wants_whole else self._has_head) and self._error is None:
            waiter = self._begin_wait(timeout_s)
            try:
                await waiter
            finally:
                self._end_wait()
        if self._error is not None and not (self._has_head and not self._wants_whole):
            raise self._error

    async def read(self, timeout_s: float) -> bytes:
        """What has come of the body since the last call, waiting for at least a byte; empty at the body's end.

        Raises: WorkerBroken, WorkerTimeout.
        """
        if not self._pieces and not self._is_complete and self._error is None:
            waiter = self._begin_wait(timeout_s)
            try:
                await waiter
            finally:
                self._end_wait()
        pieces = self._pieces
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._num_buffered = 0
            self._resume()
            return data
        if self._error is not None:
            raise self._error
        return b""

    async def pump(self, feed: Callable[[bytes], bool], timeout_s: float) -> bool:
        """Hand what comes of the body to ``feed``, as it comes and without waking a task, waiting for each byte.

        True: ``feed`` has returned False, by which it asks for a pause; call this again. False: the body has ended.

        Raises: WorkerBroken, WorkerTimeout, and what ``feed`` raises; the connection is closed then.
        """
        self._feed, self._feed_timeout_s = feed, timeout_s
        try:
            self._resume()
            if self._pieces:
                self._hand_over()
            if self._feed is not None and not self._is_complete and self._error is None:
                waiter = self._begin_wait(timeout_s)
                try:
                    await waiter
                finally:
                    self._end_wait()
            is_paused = self._feed is None
        finally:
            self._feed = None
        if self._error is not None:
            raise self._error
        return is_paused

    def take_whole(self) -> bytes:
        """The body of an answer that was wanted whole and is ready."""
        pieces = self._pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def end(self, idle_s: float) -> None:
        """The exchange is over and ``is_reusable``; the connection closes by itself when unused for ``idle_s``."""
        self._is_busy = False
        self._pieces = []
        self._resume()
        self._arm(self._loop.time() + idle_s)

    def abort(self) -> None:
        """Close at once, whatever is still to be sent or read; may be called twice."""
        self._is_busy = self._is_clean = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by isinstance: uvloop's transports don't derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_busy:
            # Nothing was asked: what comes now could be taken for the answer to the next request.
            self.abort()
            return
        self._has_answer_bytes = True
        self._num_overhead_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("The worker's answer is not plain HTTP.")
        except httptools.HttpParserError:
            # Its text may quote the answer.
            self._fail("The worker's answer is not HTTP.")
        if self.is_head_too_long:
            self._fail("The worker's answer has too long a head.")
        if self._feed is not None and self._pieces:
            self._hand_over()
        if self._is_complete or (self._feed is None and not self._wants_whole and self._has_head):
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._is_clean = False
        if exc is None and self._ends_with_connection and self._error is None:
            self._is_complete = True
        elif self._is_busy:
            self._fail("The connection to the worker ended before its answer did.", exc)
        self._wake()
        # Breaks the cycle between parser and connection, which would wait for the garbage collector.
        self._parser = None
        self._on_lost(self)

    # --- ``AnswerReader`` ---

    def _on_much_buffered(self) -> None:
        if not self._wants_whole and not self._is_paused:
            self._pause()

    def _has_unsent(self) -> bool:
        assert self._transport is not None
        return bool(self._transport.get_write_buffer_size())

    # --- waiting ---

    def _hand_over(self) -> None:
        pieces, feed = self._pieces, self._feed
        assert feed is not None
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._num_buffered = 0
        self._deadline_s = self._loop.time() + self._feed_timeout_s
        try:
            if feed(data):
                self._resume()
                return
        except Exception as error:  # noqa: BLE001 - raised again in the task that pumps
            # Also of an answer that is complete: what is wrong is what it says.
            self._error = error
            self.abort()
            self._wake()
            return
        self._feed = None
        if not self._is_complete and not self._is_paused:
            self._pause()
        self._wake()

    # A pair of functions around the await, since a coroutine of its own would be resumed once more for each piece.

    def _begin_wait(self, timeout_s: float) -> asyncio.Future[None]:
        assert self._waiter is None
        self._waiter = self._loop.create_future()
        self._arm(self._loop.time() + timeout_s)
        return self._waiter

    def _end_wait(self) -> None:
        self._waiter = None
        self._deadline_s = inf

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _pause(self) -> None:
        assert self._transport is not None
        self._is_paused = True
        self._transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def _arm(self, deadline_s: float) -> None:
        """Have ``_on_timer`` act at ``deadline_s``; a timer that ends sooner is left as it is and set anew then.

        So there is one timer every few seconds on a busy connection, and none for each piece or request.
        """
        self._deadline_s = deadline_s
        if self._timer is not None:
            if self._timer_s <= deadline_s:
                return
            self._timer.cancel()
        self._timer_s = deadline_s
        self._timer = self._loop.call_at(deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._deadline_s > self._loop.time():
            if self._deadline_s != inf:
                self._arm(self._deadline_s)
        elif self._is_busy:
            self._set_error(WorkerTimeout("The worker did not answer in time."))
        else:
            self.abort()

    def _fail(self, message: str, cause: Exception | None = None) -> None:
        error = WorkerBroken(message)
        error.__cause__ = cause
        self._set_error(error)

    def _set_error(self, error: Exception) -> None:
        """An answer that is complete stays good; the connection is closed in any case."""
        if not self._is_complete and self._error is None:
            self._error = error
        self._is_clean = False
        if self._transport is not None:
            self._transport.abort()
        self._wake()
