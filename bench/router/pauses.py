"""How long the machine itself stops a program on one core: what no router can be faster than."""

import os
import time
from collections.abc import Callable, Sequence
from statistics import median

from bench.router.tally import percentile

# About half a millisecond of work, as much as a router does for a request, then a sleep as between two requests.
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
        return summary(_durations_s(seconds, time.perf_counter, time.sleep))
    finally:
        os.sched_setaffinity(0, allowed)


def summary(durations_s: Sequence[float]) -> dict[str, float]:
    """Excess over the median in ms. Raises: ValueError: there are no values."""
    if not durations_s:
        raise ValueError("nothing was timed")
    usual_s = median(durations_s)
    excess_ms = sorted(1e3 * max(0.0, one - usual_s) for one in durations_s)
    points = {"p50": percentile(excess_ms, 50), "p99": percentile(excess_ms, 99), "max": excess_ms[-1]}
    return {name: round(value, 4) for name, value in points.items()}


def _durations_s(seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> list[float]:
    durations_s: list[float] = []
    end_s = clock() + seconds
    while (start_s := clock()) < end_s:
        total = 0
        for step in range(NUM_STEPS):
            total += step & 7
        durations_s.append(clock() - start_s)
        sleep(SLEEP_S)
    return durations_s
