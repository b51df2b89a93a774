"""When a process that ended may start again: exponential back-off, and a limit on crashes within a window."""

from collections import deque
from collections.abc import Callable

from deploy.spec import RestartSpec


class RestartPolicy:
    """Remembers the recent ends of one process; not shared between processes."""

    def __init__(self, spec: RestartSpec, clock: Callable[[], float]) -> None:
        self._spec = spec
        self._clock = clock
        self._crashes: deque[float] = deque()

    @property
    def num_recent_crashes(self) -> int:
        """Ends noted within the last ``window_s``, as of the last call of ``note_crash``."""
        return len(self._crashes)

    def note_crash(self) -> float | None:
        """Note one end; returns the seconds to wait before the next start, or None to give up."""
        now = self._clock()
        self._crashes.append(now)
        while self._crashes[0] < now - self._spec.window_s:
            self._crashes.popleft()
        if len(self._crashes) > self._spec.max_crashes:
            return None
        # The exponent is capped so that a large max_crashes can't overflow the float.
        doubled = self._spec.initial_backoff_s * 2.0 ** min(len(self._crashes) - 1, 64)
        return min(doubled, self._spec.max_backoff_s)
