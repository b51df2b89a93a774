"""A router of several processes: the parent's ports, signals and end. ``router.serving`` is that of a single one."""

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from router.app import RouterParts, build_parts, create_control_app
from router.client_port import ClientPort
from router.config import RouterConfig
from router.processes import Processes
from router.serving import CONTROL_SHUTDOWN_S, listen, names, run, server_of, urls
from router.tls import server_context
from router.worker_news import TellingRegistry

logger = logging.getLogger(__name__)


class ProcessesFailed(Exception):
    """Processes end as soon as they are started; the message says how."""


def serve_processes(config: RouterConfig) -> None:
    """As ``router.serving.serve``, by ``config.processes`` processes.

    Raises:
        ConfigError: a file that the configuration names can't be used.
        CannotListen: nothing was served.
        ProcessesFailed: after what could be finished was.
    """
    assert config.metrics_port is not None  # RouterConfig sees to it
    registry = TellingRegistry(ttl_s=config.heartbeat_ttl_s, clock=monotonic)
    parts, tls = build_parts(config, registry=registry), server_context(config)
    control_sockets = listen(config.host, config.metrics_port)
    port = ClientPort(config.host, config.port, config.processes)
    run(_serve(parts, registry, tls, port, control_sockets))


async def _serve(
    parts: RouterParts,
    registry: TellingRegistry,
    tls: ssl.SSLContext | None,
    port: ClientPort,
    control_sockets: Sequence[socket.socket],
) -> None:
    config = parts.config
    processes = Processes(parts, registry, port)
    control = server_of(create_control_app(parts, processes.view), config, tls, shutdown_s=CONTROL_SHUTDOWN_S)
    _handle_signals(processes, config)
    logger.info("the API is served by %d processes on %s", config.processes, urls(port.addresses, tls))
    logger.info("metrics and control routes are served on %s", urls(names(control_sockets), tls))
    serving_control = asyncio.create_task(control.serve(list(control_sockets)))
    # Should it ever end first: workers that can't be heard are no use to the API.
    serving_control.add_done_callback(lambda _: processes.stop())
    try:
        await processes.run()
    finally:
        # Last, so that heartbeats are heard and metrics read until the last stream has ended.
        control.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving_control
    if processes.failure is not None:
        raise ProcessesFailed(processes.failure)


def _handle_signals(processes: Processes, config: RouterConfig) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda is_last: processes.stop_harder(is_last=is_last), number == signal.SIGINT)
    if config.api_keys_file is not None:
        loop.add_signal_handler(signal.SIGHUP, processes.order, "read_keys")
