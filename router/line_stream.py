"""A log's way to a pipe or file that other processes write to as well: in pieces that the kernel doesn't mix."""

import io
import os
from select import PIPE_BUF
from typing import TextIO


def whole_lines(fd: int) -> TextIO:
    """Text written at once goes out by whole lines, as long as those are shorter than ``PIPE_BUF`` (POSIX: 512 bytes
    at least; Linux: 4,096). It is lost where nobody reads it any more."""
    return io.TextIOWrapper(_WholeLines(fd), encoding="utf-8", errors="backslashreplace", write_through=True)  # type: ignore[type-var]


class _WholeLines(io.RawIOBase):
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        rest = bytes(data)
        try:
            while rest:
                end = rest.rfind(b"\n", 0, PIPE_BUF) + 1 or PIPE_BUF
                rest = rest[os.write(self._fd, rest[:end]) :]
        except BrokenPipeError:
            # Whoever read the log is gone, maybe with the parent: no reason to cut the streams that are still served.
            return len(data)
        return len(data)
