"""How long the machine itself stops a program on one core: what no router can be faster than."""

import os
import time
from collections.abc import Sequence
from statistics import median

from bench.router.tally import summary_ms

# About half a millisecond of work, as a router does for a request, then a sleep as between two requests.
NUM_STEPS = 5_000
SLEEP_S = 0.005


def probe(core: int, seconds: float) -> dict[str, float]:
    """Do the same work on ``core`` again and again, while nothing else of ours runs there.

    Returns:
        p50, p99 and maximum, in ms, of what each took beyond the median.

    Raises:
        OSError: this process may not use the core.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        return summary_ms(excess_s(_durations_s(seconds)))
    finally:
        os.sched_setaffinity(0, allowed)


def excess_s(durations_s: Sequence[float]) -> list[float]:
    """What each took beyond the median, in seconds. Raises: ValueError: there are no values."""
    usual_s = median(durations_s)
    return [max(0.0, one - usual_s) for one in durations_s]


def _durations_s(seconds: float) -> list[float]:
    durations_s: list[float] = []
    end_s = time.perf_counter() + seconds
    while (start_s := time.perf_counter()) < end_s:
        total = 0
        for step in range(NUM_STEPS):
            total += step & 7
        durations_s.append(time.perf_counter() - start_s)
        time.sleep(SLEEP_S)
    return durations_s
