"""The only file that speaks HTTP to workers. Everything above sees ``WorkerClient`` and the three failures below.

    WorkerUnreachable   no connection, so nothing was sent
    WorkerBroken        the connection ended before the answer did, or the answer is not HTTP
    WorkerTimeout       no byte within the allowed time

Leaving ``stream`` early, by an exception or a cancellation, closes the connection, on which vLLM aborts the request.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import httpx

from wire.errors import DeadlineExceeded, UpstreamError

# uvicorn in the workers closes an idle connection after 5 s; ours go before, so that none is closed as we write to it.
IDLE_CONNECTION_S = 3.0


class WorkerUnreachable(UpstreamError):
    """No connection to the worker; it has not seen the request."""


class WorkerBroken(UpstreamError):
    """The worker may have seen the request, but its answer did not arrive whole."""


class WorkerTimeout(DeadlineExceeded):
    """The worker was silent for too long."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
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

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body's bytes as they arrive. Raises: WorkerBroken, WorkerTimeout."""
        ...


class WorkerClient(Protocol):
    """HTTP to workers. All methods raise WorkerUnreachable, WorkerBroken or WorkerTimeout."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> WorkerAnswer:
        """One exchange, bounded as a whole by ``timeout_s``."""
        ...

    async def get(self, url: str, headers: Mapping[str, str], *, timeout_s: float) -> WorkerAnswer: ...

    def stream(
        self, url: str, body: bytes, headers: Mapping[str, str], *, idle_timeout_s: float
    ) -> AbstractAsyncContextManager[WorkerStream]:
        """Entered when the answer's head is there; ``idle_timeout_s`` bounds each wait for bytes."""
        ...

    async def aclose(self) -> None: ...


class HttpxWorkerClient:
    """``WorkerClient`` over httpx: unlimited pool, no proxies from the environment, no redirects, no decompression."""

    def __init__(self, *, connect_timeout_s: float, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._connect_timeout_s = connect_timeout_s
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_CONNECTION_S)
        self._client = httpx.AsyncClient(
            limits=limits,
            transport=transport,
            trust_env=False,
            follow_redirects=False,
            headers={"accept-encoding": "identity", "user-agent": "tandem-router"},
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> WorkerAnswer:
        return await self._exchange("POST", url, body, headers, timeout_s)

    async def get(self, url: str, headers: Mapping[str, str], *, timeout_s: float) -> WorkerAnswer:
        return await self._exchange("GET", url, None, headers, timeout_s)

    @asynccontextmanager
    async def stream(
        self, url: str, body: bytes, headers: Mapping[str, str], *, idle_timeout_s: float
    ) -> AsyncIterator[WorkerStream]:
        request = self._client.build_request(
            "POST", url, content=body, headers=dict(headers), timeout=self._timeout(idle_timeout_s)
        )
        with _translated():
            response = await self._client.send(request, stream=True)
        try:
            yield _HttpxStream(response)
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _exchange(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> WorkerAnswer:
        with _translated():
            async with asyncio.timeout(timeout_s):
                response = await self._client.request(
                    method, url, content=body, headers=dict(headers), timeout=self._timeout(timeout_s)
                )
        return WorkerAnswer(response.status_code, response.headers, response.content)

    def _timeout(self, idle_timeout_s: float) -> httpx.Timeout:
        return httpx.Timeout(idle_timeout_s, connect=self._connect_timeout_s, pool=None)


class _HttpxStream:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        with _translated():
            async for chunk in self._response.aiter_raw():
                yield chunk


@contextmanager
def _translated() -> Iterator[None]:
    """httpx's errors as ours. Their texts are dropped: they may quote what was sent."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise WorkerUnreachable("The worker can't be reached.") from error
    except (httpx.TimeoutException, TimeoutError) as error:
        raise WorkerTimeout("The worker did not answer in time.") from error
    except httpx.RequestError as error:
        raise WorkerBroken("The connection to the worker ended before its answer did.") from error
