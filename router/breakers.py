"""Circuit breakers: a worker that keeps failing gets no requests for a while, then one, then all again.

    CLOSED     everything passes; a number of failures in a row opens it
    OPEN       nothing passes, for a time that grows with each opening
    HALF_OPEN  one request passes
    PROBING    that request is under way, and nothing else passes. Half open again as soon as its answer begins, or
               after PROBE_PATIENCE_S: a good answer may take minutes

A leg that ends well closes it, one that fails by the worker's fault opens it for longer. What says nothing about the
worker (the client left, its request was refused) leaves it as it was. What an open breaker means for the choice of a
worker, and what if all are open, is said in ``router.pools``.
"""

import logging
from collections.abc import Callable
from math import inf

from router.workers import BreakerState, Worker
from wire.worker import WorkerRole

# Longer than a small answer takes, short enough that one long answer doesn't keep a worker away that is well again.
PROBE_PATIENCE_S = 10.0
# So that many routers, or many workers that failed together, don't all try again at one moment.
MIN_JITTER = 0.5
# 2 ** 30 seconds are 34 years: the bound on the open time has long been reached.
MAX_DOUBLINGS = 30

logger = logging.getLogger(__name__)


def end_wait(worker: Worker, now_s: float) -> None:
    """Half open, if it was open or probing for long enough."""
    if worker.breaker_end_s <= now_s:
        worker.breaker, worker.breaker_end_s = BreakerState.HALF_OPEN, inf


class Breakers:
    """Opens and closes the breakers of workers, by how their legs end.

    A caller may skip every call but ``fail`` while the worker's ``num_failures`` is 0.

    Args:
        max_failures: in a row, at which a breaker opens; 0: never.
        open_s: how long it stays open the first time; twice as long each further time, at most ``max_open_s``. Each
            is shortened at random, to half at the least.
        clock: monotonic seconds.
        random: from 0 to 1.
        on_change: called after every change that decides what a worker may be given.
        on_trip: called when one has opened.
    """

    def __init__(
        self,
        *,
        max_failures: int,
        open_s: float,
        max_open_s: float,
        clock: Callable[[], float],
        random: Callable[[], float],
        on_change: Callable[[], None],
        on_trip: Callable[[WorkerRole], None],
    ) -> None:
        self._max_failures, self._open_s, self._max_open_s = max_failures, open_s, max_open_s
        self._clock, self._random = clock, random
        self._on_change, self._on_trip = on_change, on_trip

    def begin_leg(self, worker: Worker) -> None:
        """A leg on the worker begins. If its breaker is not closed, this is its one request."""
        if worker.breaker is not BreakerState.CLOSED:
            worker.breaker, worker.breaker_end_s = BreakerState.PROBING, self._clock() + PROBE_PATIENCE_S
            self._on_change()

    def end_probe(self, worker: Worker | None) -> None:
        """The one request's answer has begun, or it has ended without a word about the worker: the next may pass."""
        if worker is not None and worker.breaker is BreakerState.PROBING:
            worker.breaker, worker.breaker_end_s = BreakerState.HALF_OPEN, inf
            self._on_change()

    def succeed(self, worker: Worker) -> None:
        """A leg has ended well."""
        if worker.breaker is BreakerState.OPEN:
            return  # of a request that began before
        worker.num_failures = worker.num_trips = 0
        if worker.breaker is not BreakerState.CLOSED:
            worker.breaker, worker.breaker_end_s = BreakerState.CLOSED, inf
            logger.info("worker %s serves again: its breaker is closed", worker.worker_id)
            self._on_change()

    def fail(self, worker: Worker) -> None:
        """A leg has failed, and the worker is at fault."""
        if self._max_failures == 0 or worker.breaker is BreakerState.OPEN:
            return
        worker.num_failures += 1
        if worker.breaker is BreakerState.CLOSED and worker.num_failures < self._max_failures:
            return
        open_s = min(self._open_s * 2 ** min(worker.num_trips, MAX_DOUBLINGS), self._max_open_s)
        open_s *= MIN_JITTER + (1 - MIN_JITTER) * self._random()
        worker.num_trips += 1
        worker.breaker, worker.breaker_end_s = BreakerState.OPEN, self._clock() + open_s
        logger.warning(
            "worker %s failed %d times in a row: its breaker is open for %.1f s",
            worker.worker_id,
            worker.num_failures,
            open_s,
        )
        self._on_trip(worker.role)
        self._on_change()
