"""Metrics of admission and of what happens to a request on its way: waits, refusals, pings, breakers, retries."""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.endpoints import Route, Stage
from router.gate import Gate
from router.metric_kinds import LabelledCounter
from router.workers import BreakerState, Worker
from wire.worker import WorkerRole


class RefusalReason(StrEnum):
    """Why a good request was not let in; also the code in its error."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    DRAINING = "draining"


class FallbackReason(StrEnum):
    """Why decode computed a prompt that prefill should have; also the reason in ``tandem_router_path``."""

    NO_PREFILL = "no_prefill"
    PREFILL_FAILED = "prefill_failed"


class LifecycleMetrics:
    """These metrics, in the registry of the router's others.

    Args:
        paths: the counter of paths by route and reason.
        queue_waits_s: takes each wait.
        workers: the workers known now; read at each scrape.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        paths: LabelledCounter,
        observe_queue_wait: Callable[[float], None],
        workers: Callable[[], Sequence[Worker]],
    ) -> None:
        self._paths = paths
        self.observe_queue_wait = observe_queue_wait
        """Takes the seconds of one wait for one role."""
        self.gates: list[Gate] = []
        """Whose state is shown."""
        self._refused = Counter(
            "tandem_router_admission_refused", "Good requests that were not let in.", ["reason"], registry=registry
        )
        self._pings = Counter(
            "tandem_router_pings", "Comments sent to clients whose stream has not begun.", registry=registry
        )
        self._timeouts = Counter(
            "tandem_router_request_timeouts", "Requests that reached their own time limit.", registry=registry
        )
        self._trips = Counter("tandem_router_breaker_trips", "Breakers that opened.", ["role"], registry=registry)
        self._retries_refused = Counter(
            "tandem_router_retries_refused",
            "Second attempts that the budget had no room for.",
            ["leg"],
            registry=registry,
        )
        # A rate over a series that only appears with its first event misses that event.
        for reason in RefusalReason:
            self._refused.labels(reason.value)
        for role in WorkerRole:
            self._trips.labels(role.value)
        for leg in (Stage.PREFILL, Stage.DECODE):
            self._retries_refused.labels(leg.value)
        for fallback in FallbackReason:
            self._paths.add(Route.DECODE_ONLY, fallback, number=0)
        registry.register(_StateCollector(self.gates, workers))

    def count_refused(self, reason: RefusalReason) -> None:
        self._refused.labels(reason.value).inc()

    def count_ping(self) -> None:
        self._pings.inc()

    def count_timeout(self) -> None:
        self._timeouts.inc()

    def count_trip(self, role: WorkerRole) -> None:
        self._trips.labels(role.value).inc()

    def count_retry_refused(self, leg: Stage) -> None:
        self._retries_refused.labels(leg.value).inc()

    def count_survival(self, reason: FallbackReason) -> None:
        self._paths.add(Route.DECODE_ONLY, reason)


class _StateCollector(Collector):
    """What the gates and breakers are like when scraped."""

    def __init__(self, gates: Sequence[Gate], workers: Callable[[], Sequence[Worker]]) -> None:
        self._gates, self._workers = gates, workers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        gates = self._gates
        yield _by_role("queued_requests", "Requests that wait for room.", {g.role: g.num_waiting for g in gates})
        yield _by_role("queued_tokens", "Their tokens, estimated.", {g.role: g.num_waiting_tokens for g in gates})
        yield _by_role(
            "tokens_in_flight", "Tokens that were let in, estimated.", {g.role: g.num_in_flight_tokens for g in gates}
        )
        yield _by_role("tokens_limit", "At most so many; 0: no limit.", {g.role: g.limit_tokens for g in gates})
        num_open = dict.fromkeys(WorkerRole, 0)
        for worker in self._workers():
            num_open[worker.role] += worker.breaker is not BreakerState.CLOSED
        yield _by_role("breaker_open", "Workers whose breaker is open or half open.", num_open)


def _by_role(name: str, text: str, values: dict[WorkerRole, int]) -> Metric:
    family = GaugeMetricFamily(f"tandem_router_{name}", text, labels=["role"])
    for role, value in values.items():
        family.add_metric([role.value], value)
    return family
