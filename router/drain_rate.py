"""How fast a queue has drained lately, for an honest Retry-After."""

from collections.abc import Callable
from math import ceil

# Long enough to hold several long prompts, short enough to notice that a worker has come or gone.
WINDOW_S = 10.0
# Less says nothing about a rate.
LEAST_S = 1.0
MIN_RETRY_AFTER_S = 1
# Clients by OpenAI and Anthropic keep to a Retry-After of at most a minute and think up their own wait beyond it.
MAX_RETRY_AFTER_S = 60


class DrainRate:
    """Tokens that left a queue for a worker, over the last one to two windows.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """The queue has been empty: what was before says nothing about it now."""
        self._start_s = self._before_start_s = self._clock()
        self._num_tokens = self._num_before = 0

    def note(self, num_tokens: int) -> None:
        """So many got their turn."""
        self._turn_over()
        self._num_tokens += num_tokens

    def retry_after_s(self, num_tokens: int) -> int:
        """Whole seconds until so many will have left, by the recent rate; within the bounds above."""
        self._turn_over()
        elapsed_s = self._clock() - self._before_start_s
        if elapsed_s < LEAST_S:
            return MIN_RETRY_AFTER_S
        rate = (self._num_tokens + self._num_before) / elapsed_s
        wait_s = ceil(num_tokens / rate) if rate else MAX_RETRY_AFTER_S
        return max(MIN_RETRY_AFTER_S, min(wait_s, MAX_RETRY_AFTER_S))

    def _turn_over(self) -> None:
        now_s = self._clock()
        if now_s - self._start_s < WINDOW_S:
            return
        # After two windows without a word nothing is known of the last one.
        is_recent = now_s - self._start_s < 2 * WINDOW_S
        self._num_before, self._num_tokens = self._num_tokens if is_recent else 0, 0
        self._before_start_s = self._start_s if is_recent else now_s - WINDOW_S
        self._start_s = now_s
