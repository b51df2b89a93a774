"""How the router writes its log: one line for each record to standard error, in blocks, for the price of a line."""

import logging
import sys
import threading
import time
from functools import lru_cache
from typing import TextIO

LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"
# A block waits at most for so long, or until it has so many lines; a warning takes it along at once.
MAX_WAIT_S = 0.2
MAX_LINES = 256


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Make all loggers of this process write to ``stream``, standard error by default, from ``level`` on."""
    handler = BlockHandler(stream or sys.stderr)
    handler.setFormatter(SecondsFormatter(LINE))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # What the format doesn't show and the logging module would look up for each line (its documentation's advice).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # The name of the calling file; without it the stack is not walked.
    logging._srcfile = None


class RequestLog:
    """One line for each request, the only line that is written so often.

    Past the logging module's record and its way through loggers and handlers, unless somebody else has set it up.
    """

    def __init__(self, name: str) -> None:
        self._name, self._logger = name, logging.getLogger(name)

    @property
    def is_enabled(self) -> bool:
        return self._logger.isEnabledFor(logging.INFO)

    def write(self, line: str) -> None:
        handlers = logging.root.handlers
        if len(handlers) == 1 and isinstance(handlers[0], BlockHandler):
            handlers[0].add(f"{time_stamp(time.time())} INFO {self._name} {line}")
        else:
            self._logger.info("%s", line)


def time_stamp(seconds: float) -> str:
    """``2026-11-30 12:00:00,123``, local time; the part down to the second is worked out once a second."""
    second = int(seconds)
    return f"{_to_the_second(second)},{int((seconds - second) * 1000):03d}"


@lru_cache(maxsize=4)
def _to_the_second(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))


class SecondsFormatter(logging.Formatter):
    """The usual format, with cheap time stamps."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return time_stamp(record.created)


class BlockHandler(logging.Handler):
    """Gathers lines and writes them together: a write for each line would cost as much as all else about it.

    A thread writes what has waited for ``MAX_WAIT_S``, so a busy event loop doesn't keep lines back. It is one for all
    blocks: starting a thread takes as long as a request. A line at WARNING or above is written at once, with those
    before it. ``logging`` itself writes the rest when the process exits.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: list[str] = []
        self._has_lines = threading.Event()
        self._writer: threading.Thread | None = None
        self._is_closed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Called by ``logging``, with this handler's lock held."""
        try:
            self._lines.append(self.format(record))
        except Exception:  # noqa: BLE001 - as in every handler: a line that can't be formatted must not fail a request
            self.handleError(record)
            return
        self._write_in_time(is_urgent=record.levelno >= logging.WARNING)

    def add(self, line: str) -> None:
        """A line that is formatted already."""
        self.acquire()
        try:
            self._lines.append(line)
            if len(self._lines) in (1, MAX_LINES):
                self._write_in_time(is_urgent=False)
        finally:
            self.release()

    def _write_in_time(self, *, is_urgent: bool) -> None:
        if is_urgent or len(self._lines) >= MAX_LINES:
            self.flush()
            return
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_blocks, name="log", daemon=True)
            self._writer.start()
        self._has_lines.set()

    def _write_blocks(self) -> None:
        while not self._is_closed:
            self._has_lines.wait()
            if not self._is_closed:
                time.sleep(MAX_WAIT_S)
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            self._has_lines.clear()
            if lines:
                self._stream.write("\n".join(lines) + "\n")
                self._stream.flush()
        finally:
            self.release()

    def close(self) -> None:
        self.flush()
        self._is_closed = True
        self._has_lines.set()
        super().close()
