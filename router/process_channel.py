"""One end of the private channel between a router's parent process and one of its children."""

import asyncio
import socket
from collections.abc import AsyncIterator

from router.process_messages import AnyMessage, Message, decode, encode

# A deployment's workers take a kilobyte each, a report a few hundred; what is longer is no message of ours.
MAX_LINE_BYTES = 64 << 20


class Channel:
    """Messages both ways; one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, sock: socket.socket) -> "Channel":
        """Takes over ``sock``, one of a pair."""
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=MAX_LINE_BYTES))

    @property
    def num_unsent_bytes(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    def send(self, message: Message) -> None:
        """As soon as the other end reads; lost where that is gone."""
        self.send_line(encode(message))

    def send_line(self, line: bytes) -> None:
        """An encoded message, for whoever sends it to several."""
        if not self._writer.is_closing():
            self._writer.write(line)

    async def messages(self) -> AsyncIterator[AnyMessage]:
        """What the other end sends, until it is gone.

        Raises:
            ValueError: something else came.
        """
        while line := await self._next_line():
            yield decode(line)

    async def aclose(self) -> None:
        """Send what is left, then close."""
        try:
            self._writer.close()
            await self._writer.wait_closed()
        except ConnectionError:
            return  # the other end is gone, and with it the need

    async def _next_line(self) -> bytes:
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return b""
        return line if line.endswith(b"\n") else b""  # half a message: its sender died over it
