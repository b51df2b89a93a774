"""Notices that a client has left, and stops the work for it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

from starlette.types import Message, Receive

Listen = Callable[[Callable[[], None] | None], None]
"""What calls back when the client leaves (``router.client_protocol.LISTEN``)."""

logger = logging.getLogger(__name__)


class ClientLeft(Exception):
    """The client closed its connection before the answer was complete."""


async def run_while_connected(work: Coroutine[Any, Any, None], receive: Receive, listen: Listen | None = None) -> None:
    """Run ``work`` in this task; if the client leaves first, cancel it and wait until it has unwound.

    The request's body must have been read.

    Args:
        receive: asked for what comes next, unless there is
        listen: which costs nothing while the client stays.

    Raises:
        ClientLeft, or what ``work`` raises.
    """
    running = asyncio.current_task()
    assert running is not None
    watch = _Asking(running, receive) if listen is None else _Listening(running, listen)
    try:
        await work
    except BaseException as error:
        # The cancellation is the watch's own, unless somebody else cancels this task as well.
        if watch.has_client_left and running.uncancel() == 0:
            if not isinstance(error, asyncio.CancelledError):
                logger.warning("%s while unwinding a request", type(error).__name__)
            raise ClientLeft from None
        raise
    finally:
        watch.end()


class _Listening:
    """Cancels ``running`` when the client leaves before ``end`` is called."""

    def __init__(self, running: asyncio.Task[Any], listen: Listen) -> None:
        self.has_client_left = False
        self._running, self._listen = running, listen
        listen(self._leave)

    def end(self) -> None:
        self._listen(None)

    def _leave(self) -> None:
        self.has_client_left = True
        self._running.cancel()


class _Asking:
    """The same with any ASGI server.

    Waits for the server's next message without a task of its own, which would be a tenth of a small request: it does
    what a task does, resume the coroutine whenever the future is done that it waits for.
    """

    def __init__(self, running: asyncio.Task[Any], receive: Receive) -> None:
        self.has_client_left = self._is_over = False
        self._running, self._receive = running, receive
        self._waiting_for: asyncio.Future[Any] | None = None
        self._message = self._next_message()
        self._resume()

    def end(self) -> None:
        """Nothing is cancelled any more."""
        if self._waiting_for is not None:
            self._waiting_for.remove_done_callback(self._resume)
        self._is_over = True
        self._message.close()

    def _next_message(self) -> Coroutine[Any, None, Message]:
        # By ASGI an awaitable; by every server's and the type checker's word a coroutine.
        return cast("Coroutine[Any, None, Message]", self._receive())

    def _resume(self, _: object = None) -> None:
        self._waiting_for = None
        while not self._is_over:
            try:
                future = self._message.send(None)
            except StopIteration as end:
                if end.value["type"] == "http.disconnect":
                    self.has_client_left = True
                    self._running.cancel()
                    return
                self._message = self._next_message()
            else:
                self._wait_for(future)
                return

    def _wait_for(self, future: asyncio.Future[Any] | None) -> None:
        if future is None:  # the coroutine only lets others go first
            asyncio.get_running_loop().call_soon(self._resume)
            return
        # The mark by which a future knows that it is awaited, and which whoever resumes the coroutine takes away.
        future._asyncio_future_blocking = False
        future.add_done_callback(self._resume)
        self._waiting_for = future
