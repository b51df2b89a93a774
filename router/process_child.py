"""One of the processes that share a router's requests; its parent starts it.

It does what a router does for its clients. From its parent it learns its configuration and the workers; it tells what
it counts, when asked. Without its parent it stops, as nobody would tell it of workers any more.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from time import monotonic

from router.app import build_parts, create_app
from router.auth import read_keys_again
from router.config import ConfigError, RouterConfig
from router.line_stream import whole_lines
from router.logs import configure_logging
from router.memory import keep_freed_memory, search_cycles_rarely
from router.process_channel import Channel
from router.process_messages import AnyMessage, Load, Order, OrderName, Report, Start, State, Suspect, Workers
from router.process_metrics import families_of
from router.serving import handle_signals, run, server_of
from router.tls import server_context
from router.worker_news import ToldRegistry
from router.workers import Worker

EXIT_UNUSABLE = 2
POLL_S = 0.02

logger = logging.getLogger("router.process_child")  # run as a program, it has another name


def main() -> None:
    """Arguments: file descriptors, of the channel first, then of the sockets to serve on."""
    channel, *sockets = [socket.socket(fileno=int(fd)) for fd in sys.argv[1:]]
    keep_freed_memory()
    search_cycles_rarely()
    try:
        run(_run(channel, sockets))
    except ConfigError as error:
        # A file has changed since the parent read it.
        print(f"router: {error}", file=sys.stderr)
        raise SystemExit(EXIT_UNUSABLE) from None


async def _run(channel_socket: socket.socket, sockets: Sequence[socket.socket]) -> None:
    channel = await Channel.open(channel_socket)
    messages = channel.messages()
    start = await anext(messages, None)
    if not isinstance(start, Start):
        return  # the parent is gone already
    config = RouterConfig.model_validate_json(start.config)
    configure_logging(config.log_level, whole_lines(sys.stderr.fileno()))
    child = Child(config, channel)
    async with asyncio.TaskGroup() as group:
        obeying = group.create_task(child.obey(messages))
        await child.serve(sockets)
        obeying.cancel()
    await channel.aclose()


class Child:
    """Serves clients, and does what the parent says meanwhile."""

    def __init__(self, config: RouterConfig, channel: Channel) -> None:
        self._channel = channel
        registry = ToldRegistry(ttl_s=config.heartbeat_ttl_s, clock=monotonic, on_suspect=self._tell_suspect)
        # Workers are in the metrics of the parent, who alone hears from them: a sum would show each several times.
        self._parts = build_parts(config, registry=registry, shown_workers=tuple)
        tls, drain = server_context(config), self._parts.lifecycle.drain
        shutdown_s = int(config.shutdown_timeout_s)
        self._api = server_of(create_app(self._parts), config, tls, shutdown_s=shutdown_s, drain=drain)
        self._registry = registry
        self._knows_workers = asyncio.Event()
        self._telling_idle: asyncio.Task[None] | None = None
        self._orders: dict[OrderName, Callable[[], None]] = {
            "report": self._report,
            "read_keys": partial(read_keys_again, self._parts.auth, config),
            "drain": self._drain,
            "finish": self._finish,
            "cut": drain.cut,
            "force": self._force,
        }

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """From when the workers are known until the drain is over."""
        handle_signals(self._parts, self._api)
        await self._knows_workers.wait()
        telling = asyncio.create_task(self._tell_serving())
        await self._api.serve(list(sockets))
        telling.cancel()
        self._report()  # what has been counted since it was asked last

    async def obey(self, messages: AsyncIterator[AnyMessage]) -> None:
        """Until cancelled, or until the parent is gone."""
        async for message in messages:
            match message:
                case Workers():
                    self._parts.lifecycle.fallback.has_been_whole |= message.has_been_whole
                    self._registry.take(message.heard, message.gone)
                    self._knows_workers.set()
                case Order():
                    self._orders[message.name]()
                case _:
                    raise ValueError(f"a parent does not send {message.kind}")
        logger.warning("the parent process is gone: stopping")
        self._finish()
        self._parts.lifecycle.drain.begin()
        self._knows_workers.set()

    def _report(self) -> None:
        loads = [
            Load(worker.worker_id, worker.num_in_flight, worker.tokens_in_flight, worker.breaker)
            for worker in self._registry.workers()
        ]
        families = families_of(self._parts.metrics.collect())
        self._channel.send(Report(families=families, loads=tuple(loads)))

    def _drain(self) -> None:
        drain = self._parts.lifecycle.drain
        drain.is_held = True
        drain.begin()
        if self._telling_idle is None:
            self._telling_idle = asyncio.create_task(self._tell_idle())

    def _finish(self) -> None:
        self._parts.lifecycle.drain.is_held = False

    def _force(self) -> None:
        self._api.force_exit = True

    def _tell_suspect(self, worker: Worker) -> None:
        self._channel.send(Suspect(worker_id=worker.worker_id, generation=worker.generation))

    async def _tell_serving(self) -> None:
        while not self._api.started:  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(POLL_S)
        self._channel.send(State(name="serving"))

    async def _tell_idle(self) -> None:
        while self._parts.active.num:  # noqa: ASYNC110 - the one future that it can wait on is the lifespan's
            await asyncio.sleep(POLL_S)
        self._channel.send(State(name="idle"))
