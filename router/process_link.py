"""One of a router's child processes as its parent sees it, from its start to its end."""

import asyncio
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from time import monotonic

from router.process_channel import Channel
from router.process_messages import AnyMessage, Message, Order, OrderName, Report, State, encode

# What a child that has not read its channel for minutes leaves unsent; one that reads late leaves a few kilobytes.
MAX_UNSENT_BYTES = 16 << 20
# From the end of its channel, which it closes last, to that of the process.
EXIT_LIMIT_S = 5.0

logger = logging.getLogger(__name__)


class ProcessLink:
    """The process, and the channel to it.

    Args:
        number: its place among all, from 1 on.
    """

    def __init__(self, number: int, process: "subprocess.Popen[bytes]", channel: Channel) -> None:
        self.number, self._process, self._channel = number, process, channel
        self._start_s = monotonic()
        self.is_serving = self.is_idle = False
        self.report: Report | None = None
        """The last one."""
        self._asked: asyncio.Future[None] | None = None

    @classmethod
    async def start(cls, number: int, sockets: Sequence[socket.socket]) -> "ProcessLink":
        """A child that serves on ``sockets``, once it is told its configuration and the workers.

        Raises: OSError: no process can be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = _spawn([theirs, *sockets])
            except BaseException:
                ours.close()
                raise
        return cls(number, process, await Channel.open(ours))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lived_s(self) -> float:
        return monotonic() - self._start_s

    def tell(self, message: Message) -> None:
        self.tell_line(encode(message))

    def order(self, name: OrderName) -> None:
        self.tell(Order(name=name))

    def tell_line(self, line: bytes) -> None:
        """An encoded message."""
        self._channel.send_line(line)
        if self._channel.num_unsent_bytes > MAX_UNSENT_BYTES:
            logger.error("process %d (pid %d) hears nothing any more: it is killed", self.number, self.pid)
            self.kill()

    async def messages(self) -> AsyncIterator[AnyMessage]:
        """What it says, until its channel ends; its reports and states are noted here."""
        try:
            async for message in self._channel.messages():
                match message:
                    case Report():
                        self.report = message
                        self._settle()
                    case State(name="serving"):
                        self.is_serving = True
                    case State(name="idle"):
                        self.is_idle = True
                yield message
        except ValueError:
            logger.exception("process %d (pid %d) sent what is no message: it is killed", self.number, self.pid)
            self.kill()
        finally:
            self.is_serving = False
            self._settle()

    async def ask_report(self, timeout_s: float) -> bool:
        """Whether ``report`` is fresh. Asked again before it answers, it is not asked twice."""
        if not self.is_serving:
            return False
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self.order("report")
        done, _ = await asyncio.wait((self._asked,), timeout=timeout_s)
        return bool(done) and self.is_serving

    def kill(self) -> None:
        self._process.kill()

    async def end(self) -> str:
        """Wait for its end, which is near as its channel has ended, and say how it was."""
        try:
            code = await asyncio.to_thread(self._process.wait, EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = await asyncio.to_thread(self._process.wait)
        await self._channel.aclose()
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def _settle(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_result(None)


def _spawn(sockets: Sequence[socket.socket]) -> "subprocess.Popen[bytes]":
    """By our interpreter, looking for modules where ours did."""
    search = ["-I"] if sys.flags.isolated else ["-P"] if sys.flags.safe_path else []
    fds = [sock.fileno() for sock in sockets]
    return subprocess.Popen(
        [sys.executable, *search, "-m", "router.child_program", *map(str, fds)],
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        # Ctrl-C is for the parent, who tells its children what to do. The session stays, for whoever sweeps it.
        process_group=0,
    )
