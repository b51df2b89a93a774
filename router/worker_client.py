"""What the router asks of an HTTP client to workers. Everything above sees ``WorkerClient`` and the failures below.

    WorkerUnreachable   no connection, or no usable URL, so nothing was sent
    WorkerBroken        the connection ended before the answer did, or the answer is not HTTP
    WorkerTimeout       no byte within the allowed time

Leaving ``stream`` early, by an exception or a cancellation, closes the connection, on which vLLM aborts the request.
The client itself is ``router.http1_client``.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from wire.errors import DeadlineExceeded, UpstreamError


class WorkerUnreachable(UpstreamError):
    """No connection to the worker; it has not seen the request."""


class WorkerBroken(UpstreamError):
    """The worker may have seen the request, but its answer did not arrive whole."""


class WorkerTimeout(DeadlineExceeded):
    """The worker was silent for too long."""


Piece = bytes | memoryview
Body = bytes | list[Piece]
"""A request's body, or its pieces in the order in which they are sent."""


class HeaderLines(str):
    """Headers of which somebody has made sure that they are one line each, ready to be sent."""


Headers = Mapping[str, str] | HeaderLines


def header_lines(headers: Mapping[str, str]) -> HeaderLines:
    """Raises: ValueError: a header that could be read as more than one."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    num_lines = len(headers)
    if lines.count("\r") != num_lines or lines.count("\n") != num_lines or "\0" in lines:
        raise ValueError("a header holds a line break or a null character")
    return HeaderLines(lines)


class WorkerAnswer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class WorkerStream(Protocol):
    """An answer whose body is still arriving."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def read(self) -> Awaitable[bytes]:
        """What has come of the body since the last call, at least a byte; empty at its end.

        Raises: WorkerBroken, WorkerTimeout.
        """
        ...

    def pump(self, feed: Callable[[bytes], bool]) -> Awaitable[bool]:
        """Hand each piece of the body to ``feed`` as it comes, without waking a task for it.

        True: ``feed`` returned False, by which it asks for a pause; call this again. False: the body has ended.

        Raises: WorkerBroken, WorkerTimeout, and what ``feed`` raises; the connection is closed then.
        """
        ...


class WorkerClient(Protocol):
    """HTTP to workers. All methods raise WorkerUnreachable, WorkerBroken or WorkerTimeout."""

    def post(self, url: str, body: Body, headers: Headers, *, timeout_s: float) -> Coroutine[Any, Any, WorkerAnswer]:
        """One exchange, bounded as a whole by ``timeout_s``."""
        ...

    def get(self, url: str, headers: Headers, *, timeout_s: float) -> Coroutine[Any, Any, WorkerAnswer]: ...

    def stream(
        self, url: str, body: Body, headers: Headers, *, idle_timeout_s: float
    ) -> AbstractAsyncContextManager[WorkerStream]:
        """Entered when the answer's head is there; ``idle_timeout_s`` bounds each wait for bytes."""
        ...

    async def aclose(self) -> None: ...
