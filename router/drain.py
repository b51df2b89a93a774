"""Stopping: no new request is taken, those that are there are finished, up to a limit."""

from collections.abc import Callable
from math import inf

from wire.errors import NoWorker

# Another router of the service takes it at once; a client that comes back to this one finds it restarted, or not.
DRAIN_RETRY_AFTER_S = 1


class Draining(NoWorker):
    """This router is stopping. The connection is closed after the answer, so that the client's next goes elsewhere."""


class Drain:
    """Whether the router is stopping, and for how long it may still finish what it has.

    Args:
        limit_s: for finishing.
        num_active: requests that have not ended.
        clock: monotonic seconds.
    """

    def __init__(self, limit_s: float, *, num_active: Callable[[], int], clock: Callable[[], float]) -> None:
        self._limit_s, self._num_active, self._clock = limit_s, num_active, clock
        self._end_s = inf
        self.is_on = False
        self.is_held = False
        """Others of this router still have requests: while there is time, answer what comes."""

    def begin(self) -> None:
        """From now on; may be called from a signal handler, and twice."""
        if not self.is_on:
            self._end_s = self._clock() + self._limit_s
            self.is_on = True

    def cut(self) -> None:
        """No more time for what is left."""
        self._end_s = self._clock()

    @property
    def is_over(self) -> bool:
        """Nothing is left to be finished, or no time for it."""
        return self.is_on and ((self._num_active() == 0 and not self.is_held) or self._clock() >= self._end_s)

    @property
    def left_s(self) -> float:
        """How long what is left may still take."""
        return max(0.0, self._end_s - self._clock()) if self.is_on else self._limit_s

    def refuse(self) -> Draining:
        """What a new request is told."""
        return Draining("The router is stopping.", code="draining", retry_after_s=DRAIN_RETRY_AFTER_S)
