"""What the launcher tells the person at the terminal."""

import itertools
from collections.abc import Callable, Sequence
from typing import TextIO

PLAIN_INTERVAL_S = 10.0
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
CLEAR_LINE = "\r\x1b[2K"


class Console:
    """Lines, and one moving progress line on a terminal; elsewhere a plain line every ten seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._is_terminal = stream.isatty()
        self._frames = itertools.cycle(SPINNER)
        self._progress_shown = False
        self._started_at = self._plain_at = clock()
        self._is_closed = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since this console was made."""
        return self._clock() - self._started_at

    def say(self, text: str) -> None:
        """Print ``text`` on lines of its own."""
        self._write((CLEAR_LINE if self._progress_shown else "") + text + "\n")
        self._progress_shown = False

    def progress(self, up: Sequence[str], loading: Sequence[str]) -> None:
        """Show which processes can serve and which are awaited; call it often."""
        awaited = f"waiting for {', '.join(loading)}" if loading else "waiting for the router to see its workers"
        summary = f"{self.elapsed_s:4.0f} s  {awaited}" + (f"  (up: {', '.join(up)})" if up else "")
        if self._is_terminal:
            self._write(f"{CLEAR_LINE}{next(self._frames)} {summary}")
            self._progress_shown = True
        elif self._clock() - self._plain_at >= PLAIN_INTERVAL_S:
            self._plain_at = self._clock()
            self.say(f"  {summary}")

    def _write(self, text: str) -> None:
        if self._is_closed:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The terminal or pipe is gone. Stopping the processes matters more than telling nobody about it.
            self._is_closed = True
