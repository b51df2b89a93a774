"""What a router's processes report, taken together: its metrics, and its load on each worker."""

from collections.abc import Iterable, Sequence

from router.app import RouterParts
from router.metric_sums import Family, Sample, add, cumulative
from router.process_link import ProcessLink
from router.process_messages import Load
from router.process_metrics import families_of, render
from router.workers import BreakerState, Worker

# Of what several processes think of one worker, the worst is shown.
_FROM_BAD_TO_GOOD = (BreakerState.OPEN, BreakerState.PROBING, BreakerState.HALF_OPEN, BreakerState.CLOSED)


class ProcessTotals:
    """Sums over the children, the parent and the children that have ended.

    Args:
        num_wanted: how many processes there should be.
    """

    def __init__(self, parts: RouterParts, *, num_wanted: int) -> None:
        self._parts, self._num_wanted, self._num_answered = parts, num_wanted, 0
        self.num_restarts = 0
        """Processes that took the place of others."""
        self._ended: tuple[Family, ...] = ()
        # No request passes the parent's gates, so their limits are no part of the whole.
        parts.metrics.lifecycle.gates.clear()

    def take(self, links: Sequence[ProcessLink], *, num_answered: int) -> None:
        """The children have reported, as many as could."""
        self._num_answered = num_answered
        loads = [load for link in links if link.report is not None for load in link.report.loads]
        for worker in self._parts.registry.workers():
            _put(worker, [load for load in loads if load.worker_id == worker.worker_id])

    def keep(self, link: ProcessLink) -> None:
        """It has ended; what it had counted when it reported last still counts."""
        if link.report is not None:
            self._ended = add([self._ended, cumulative(link.report.families)])

    def render(self, links: Iterable[ProcessLink]) -> bytes:
        """The exposition text, by the last report of each."""
        reports = [link.report.families for link in links if link.report is not None]
        sums = add([families_of(self._parts.metrics.collect()), self._ended, *reports])
        return render([*sums, *self._own_families()])

    def _own_families(self) -> Iterable[Family]:
        name, counter = "tandem_router_processes", "tandem_router_process_restarts"
        counts = {"answering": self._num_answered, "missing": self._num_wanted - self._num_answered}
        states = tuple(Sample(name, (("state", state),), number) for state, number in counts.items())
        yield Family(name, "gauge", "Processes that share the requests, as they answered this scrape.", states)
        restarts = (Sample(f"{counter}_total", (), self.num_restarts),)
        yield Family(counter, "counter", "Processes that took the place of others that had ended.", restarts)


def _put(worker: Worker, loads: Sequence[Load]) -> None:
    worker.num_in_flight = sum(load.num_in_flight for load in loads)
    worker.tokens_in_flight = sum(load.tokens_in_flight for load in loads)
    breakers = [load.breaker for load in loads]
    worker.breaker = next((state for state in _FROM_BAD_TO_GOOD if state in breakers), BreakerState.CLOSED)
