"""The parts that decide when a request may start, try again and must end, made of one configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from router.admission import Admission
from router.breakers import Breakers
from router.config import RouterConfig
from router.deadline import RequestDeadlines
from router.drain import Drain
from router.fallback import PrefillFallback
from router.lifecycle_metrics import LifecycleMetrics
from router.pings import Pinger
from router.pools import Pools
from router.registry import WorkerRegistry
from router.retries import RetryBudget


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """One router's; each part's own file says what it does."""

    admission: Admission
    pinger: Pinger
    breakers: Breakers
    retries: RetryBudget
    fallback: PrefillFallback
    deadlines: RequestDeadlines
    drain: Drain


def build_lifecycle(
    config: RouterConfig,
    *,
    registry: WorkerRegistry,
    metrics: LifecycleMetrics,
    num_active: Callable[[], int],
    clock: Callable[[], float],
    random: Random,
) -> Lifecycle:
    """Make the parts, and have them told of every change of the registry.

    Args:
        num_active: requests that have not ended.
        clock: monotonic seconds.
    """
    lifecycle = Lifecycle(
        admission=Admission(config, pools=registry.pools, metrics=metrics, clock=clock),
        pinger=Pinger(config.ping_interval_s, on_ping=metrics.count_ping, clock=clock),
        breakers=Breakers(
            max_failures=config.breaker_failures,
            open_s=config.breaker_open_s,
            max_open_s=config.breaker_max_open_s,
            clock=clock,
            random=random.random,
            on_change=registry.refresh,
            on_trip=metrics.count_trip,
        ),
        retries=RetryBudget(config.retry_ratio, clock),
        fallback=PrefillFallback(is_allowed=config.no_prefill == "decode_only", on_survival=metrics.count_survival),
        deadlines=RequestDeadlines(config.request_timeout_s, on_timeout=metrics.count_timeout, clock=clock),
        drain=Drain(config.shutdown_timeout_s, num_active=num_active, clock=clock),
    )

    def on_pools(pools: Pools) -> None:
        lifecycle.admission.set_pools(pools)
        lifecycle.fallback.note_pools(pools)

    registry.on_pools = on_pools
    metrics.gates += (lifecycle.admission.prefill, lifecycle.admission.decode)
    return lifecycle
