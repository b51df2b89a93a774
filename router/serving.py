"""The router's servers: one port, or two in one event loop; their signals, and the order in which they end."""

import asyncio
import errno
import logging
import os
import signal
import socket
import ssl
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import ceil
from typing import Any, cast

import uvicorn
import uvloop
from starlette.types import ASGIApp

from router.app import RouterParts, build_parts, create_app, create_control_app
from router.auth import read_keys_again
from router.client_protocol import ClientLimits, ClientProtocol
from router.compiled import is_compiled
from router.config import RouterConfig
from router.drain import Drain
from router.tls import server_context

BACKLOG = 2048
# Heartbeats and scrapes take milliseconds; what takes longer when all else has ended is not waited for.
CONTROL_SHUTDOWN_S = 1

logger = logging.getLogger(__name__)


class CannotListen(Exception):
    """A port or its address can't be had; the message names both."""


def serve(config: RouterConfig) -> None:
    """Serve until SIGTERM or SIGINT; returns when streams have ended and pending releases are answered.

    Raises:
        ConfigError: a file that the configuration names can't be used.
        CannotListen: nothing was served.
    """
    parts, tls = build_parts(config), server_context(config)
    api_sockets = listen(config.host, config.port)
    control_sockets = [] if config.metrics_port is None else listen(config.host, config.metrics_port)
    run(_serve(parts, tls, api_sockets, control_sockets))


def run(main: Coroutine[Any, Any, None]) -> None:
    """In an event loop of its own."""
    uvloop.run(main)


def listen(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of ``host``.

    Raises: CannotListen.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise CannotListen(f"port {port}: {host} is not an address of this machine") from None
    sockets: list[socket.socket] = []
    for family, kind, proto, _, address in dict.fromkeys(found):
        sock = socket.socket(family, kind, proto)
        try:
            bind(sock, address)
            # At once, since two sockets may be bound to one port as long as neither listens.
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            # A name such as localhost may stand for an address of a family that this machine doesn't use.
            if error.errno == errno.EADDRNOTAVAIL and len(found) > 1:
                continue
            for other in sockets:
                other.close()
            raise CannotListen(f"port {port} on {host} can't be listened on: {os.strerror(error.errno or 0)}") from None
        sockets.append(sock)
    if not sockets:
        raise CannotListen(f"port {port}: {host} is not an address of this machine")
    return sockets


def bind(sock: socket.socket, address: Any) -> None:
    """As a server does that may be started again at once. Raises: OSError."""
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET6:
        # Of one's own, beside the socket of the same port for IPv4.
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind(address)


class Server(uvicorn.Server):
    """uvicorn's server without signal handlers of its own: one signal is for all servers.

    With a drain it stops when that is over, and goes on answering until then. What is new is refused with an answer
    that says why, readiness probes included, where a closed port would look like a crash.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain | None) -> None:
        super().__init__(config)
        self._drain = drain

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; whether to stop serving."""
        self.should_exit = self.should_exit or (self._drain is not None and self._drain.is_over)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """What has not ended by now gets what is left of the drain's limit."""
        if self._drain is not None and self._drain.is_on:
            self.config.timeout_graceful_shutdown = ceil(self._drain.left_s)
        await super().shutdown(sockets)


def server_of(
    app: ASGIApp, config: RouterConfig, tls: ssl.SSLContext | None, *, shutdown_s: int, drain: Drain | None = None
) -> Server:
    """A server of ``app`` with the router's settings, for sockets that listen already.

    Args:
        shutdown_s: seconds for what is under way when it is asked to stop without a drain.
        drain: that ends it.
    """
    limits = ClientLimits(
        head_s=config.client_header_timeout_s, body_s=config.client_body_timeout_s, idle_s=config.client_keep_alive_s
    )
    settings = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(ClientProtocol, limits=limits)),
        ws="none",
        # Nothing here asks who the client is.
        proxy_headers=False,
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=shutdown_s,
    )
    settings.load()
    settings.ssl = tls
    return Server(settings, drain)


async def _serve(
    parts: RouterParts,
    tls: ssl.SSLContext | None,
    api_sockets: Sequence[socket.socket],
    control_sockets: Sequence[socket.socket],
) -> None:
    config = parts.config
    drain = parts.lifecycle.drain
    api = server_of(create_app(parts), config, tls, shutdown_s=int(config.shutdown_timeout_s), drain=drain)
    handle_signals(parts, api)
    form = "compiled" if is_compiled() else "not compiled"
    logger.info("the API is served on %s, the hot path %s", urls(names(api_sockets), tls), form)
    if not control_sockets:
        await api.serve(list(api_sockets))
        return
    control = server_of(create_control_app(parts), config, tls, shutdown_s=CONTROL_SHUTDOWN_S)
    logger.info("metrics and control routes are served on %s", urls(names(control_sockets), tls))
    serving_control = asyncio.create_task(control.serve(list(control_sockets)))
    # Should it ever end first: workers that can't be heard are no use to the API.
    serving_control.add_done_callback(lambda _: setattr(api, "should_exit", True))
    try:
        await api.serve(list(api_sockets))
    finally:
        # Last, so that heartbeats are heard and metrics read until the API's last stream has ended.
        control.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving_control


def handle_signals(parts: RouterParts, api: Server) -> None:
    """SIGTERM or SIGINT: the first drains, the second cuts; a further SIGINT waits for nothing. SIGHUP: read keys."""
    drain = parts.lifecycle.drain

    def stop(number: signal.Signals) -> None:
        if not drain.is_on:
            logger.info("stopping: %d requests are to be finished", parts.active.num)
            drain.begin()
        elif not api.should_exit:
            drain.cut()  # whoever asks twice doesn't want to wait for streams
        else:
            api.force_exit = api.force_exit or number == signal.SIGINT

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    if parts.config.api_keys_file is not None:
        loop.add_signal_handler(signal.SIGHUP, read_keys_again, parts.auth, parts.config)


def urls(addresses: Sequence[Any], tls: ssl.SSLContext | None) -> str:
    """Where servers listen, for people."""
    scheme = "http" if tls is None else "https"
    places = [address[:2] for address in addresses]
    return " and ".join([f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in places])


def names(sockets: Sequence[socket.socket]) -> list[Any]:
    """Their addresses, as sockets tell them."""
    return [sock.getsockname() for sock in sockets]
