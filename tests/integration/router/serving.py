"""Runs ASGI apps on loopback inside the test's event loop, and waits for what happens soon."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import ModuleType
from typing import Any

import uvicorn

from router.app import RouterParts, create_app
from router.serving import listen, server_of

# uvicorn looks every tenth of a second whether it may end. A thousand tests would wait for minutes.
TICK_S = 0.005
# Generous: the machine may be busy; the wait ends as soon as the condition holds.
SOON_S = 15.0


class QuickAsyncio(ModuleType):
    """asyncio as uvicorn's servers see it in these tests, where none of their short sleeps takes long."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, TICK_S))


class QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers, which belong to the test runner here, and told to stop without delay."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stopping.wait()


@asynccontextmanager
async def served_all(apps: Sequence[Any]) -> AsyncIterator[list[str]]:
    """Base URLs of the apps while they are served; they stop side by side, as each takes a tenth of a second for it."""
    servers = [served(app) for app in apps]
    try:
        yield [await server.__aenter__() for server in servers]
    finally:
        await asyncio.gather(*(server.__aexit__(None, None, None) for server in servers))


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The app's base URL while it is served over real HTTP."""
    # asyncio sets TCP_NODELAY where the protocol says TCP; without, each answer may wait 40 ms for an ACK.
    sock = socket.socket(proto=socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    config = uvicorn.Config(
        app, log_config=None, http="httptools", ws="none", interface="asgi3", timeout_graceful_shutdown=2
    )
    server = QuietServer(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    await eventually(lambda: server.started)
    try:
        yield url
    finally:
        server.stopping.set()
        await task


@asynccontextmanager
async def served_router(parts: RouterParts, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The router's base URL while it is served by its own server, all on one port."""
    sockets = listen("127.0.0.1", 0)
    server = server_of(create_app(parts), parts.config, tls, shutdown_s=2)
    port = sockets[0].getsockname()[1]
    task = asyncio.create_task(server.serve(sockets))
    await eventually(lambda: server.started)
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


async def eventually(holds: Callable[[], Any]) -> None:
    """Returns as soon as ``holds()`` is true; fails if it isn't soon."""
    deadline = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline, "did not come true soon"
        await asyncio.sleep(0.005)


def unused_url() -> str:
    """A loopback URL at which nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"
