"""A budget for retries, so that an outage is not met with twice the load."""

from collections.abc import Callable

# What is left unused is kept, up to so many: enough for a worker that dies with its requests, few beside a real load.
MAX_SAVED = 20.0
# A router with little to do may still retry now and then.
FLOOR_RPS = 1.0


class RetryBudget:
    """Allows one retry for each ``1 / ratio`` requests and for each second, and what was saved of them.

    Args:
        ratio: retries for each request; 0: none but the floor's.
        clock: monotonic seconds.
    """

    def __init__(self, ratio: float, clock: Callable[[], float]) -> None:
        self._ratio, self._clock = ratio, clock
        self._saved, self._seen_s = MAX_SAVED, clock()
        self.num_requests = 0
        """Since the last call of ``take``; whoever serves a request counts it here."""

    def take(self) -> bool:
        """Whether a request may be tried once more now."""
        now_s = self._clock()
        earned = self.num_requests * self._ratio + (now_s - self._seen_s) * FLOOR_RPS
        self._saved = min(self._saved + earned, MAX_SAVED)
        self.num_requests, self._seen_s = 0, now_s
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
