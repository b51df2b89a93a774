"""What the router asks of an HTTP client to workers. Everything above sees ``WorkerClient`` and the failures below.

    WorkerUnreachable   no connection, or no usable URL, so nothing was sent
    WorkerBroken        the connection ended before the answer did, or the answer is not HTTP
    WorkerTimeout       no byte within the allowed time

Leaving ``stream`` early, by an exception or a cancellation, closes the connection, on which vLLM aborts the request.
The client itself is ``router.http1_client``.
"""

from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

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


class WorkerClient(Protocol):
    """HTTP to workers. All methods raise WorkerUnreachable, WorkerBroken or WorkerTimeout."""

    async def post(self, url: str, body: Body, headers: Mapping[str, str], *, timeout_s: float) -> WorkerAnswer:
        """One exchange, bounded as a whole by ``timeout_s``."""
        ...

    async def get(self, url: str, headers: Mapping[str, str], *, timeout_s: float) -> WorkerAnswer: ...

    def stream(
        self, url: str, body: Body, headers: Mapping[str, str], *, idle_timeout_s: float
    ) -> AbstractAsyncContextManager[WorkerStream]:
        """Entered when the answer's head is there; ``idle_timeout_s`` bounds each wait for bytes."""
        ...

    async def aclose(self) -> None: ...
