"""The router's metrics, in vLLM's style (seconds, ``_total``, bounded labels)."""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from router.context import RequestContext
from router.endpoints import Route, Stage
from router.key_usage import KeyUsage
from router.lifecycle_metrics import LifecycleMetrics
from router.metric_kinds import Histogram, LabelledCounter
from router.workers import Worker
from wire.refusal import Refusal
from wire.worker import WorkerRole, WorkerState

METRICS_CONTENT_TYPE = CONTENT_TYPE_LATEST
CLIENT_LEFT_STATUS = 499
# What a worker gave as its reason and is none that this router knows: a label must not be free text.
OTHER_REASON = "other"
# vLLM's own buckets for time to first token and for end-to-end latency, so that both can share one panel.
TTFT_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
E2E_BUCKETS_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
# And for inter-token latency.
ITL_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
# 128-token blocks: 4096 of them are the model's whole context of 512K tokens.
BLOCK_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class RouterMetrics:
    """One router's metrics in a registry of their own.

    Args:
        workers: the workers known now; read at each scrape, as are
        num_in_flight: of requests,
        usage: of the API keys.
    """

    def __init__(
        self, workers: Callable[[], Sequence[Worker]], num_in_flight: Callable[[], int], usage: KeyUsage
    ) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_WorkerCollector(workers))
        registry.register(_KeyCollector(usage))
        ProcessCollector(registry=registry)
        self._requests = LabelledCounter(
            "tandem_router_requests", "Requests answered.", ("endpoint", "model", "code", "path")
        )
        registry.register(self._requests)
        self._paths = LabelledCounter(
            "tandem_router_path",
            "Valid requests by the workers they need, and why; once more by what they fell back to later.",
            ("path", "reason"),
        )
        registry.register(self._paths)
        in_flight = Gauge("tandem_router_requests_in_flight", "Requests not yet answered.", registry=registry)
        in_flight.set_function(num_in_flight)

        def histogram(name: str, text: str, bounds: Sequence[float]) -> Histogram:
            made = Histogram(f"tandem_router_{name}", text, bounds)
            registry.register(made)
            return made

        self._ttft = histogram("ttft_seconds", "Arrival to first byte of a good answer.", TTFT_BUCKETS_S)
        self._e2e = histogram("e2e_seconds", "Arrival to last byte of a good answer.", E2E_BUCKETS_S)
        self.observe_itl = histogram("itl_seconds", "Gap between two pieces of a stream.", ITL_BUCKETS_S).observe
        """Takes the seconds of one gap."""
        self._prefill = histogram("prefill_seconds", "One successful prefill leg.", TTFT_BUCKETS_S)
        self.observe_handoff = histogram(
            "handoff_seconds", "Prefill's answer to decode's word that it streams.", TTFT_BUCKETS_S
        ).observe
        self.observe_first_decode = histogram(
            "first_decode_seconds", "Asking decode for a stream to its first bytes.", TTFT_BUCKETS_S
        ).observe
        self._blocks = histogram("handoff_blocks", "KV blocks of one request's handoff.", BLOCK_BUCKETS)
        self._releases = Counter("tandem_router_releases", "Handoffs given back unread.", ["reason"], registry=registry)
        self._release_failures = Counter(
            "tandem_router_release_failures", "Releases that no attempt got through.", registry=registry
        )
        self._disconnects = Counter(
            "tandem_router_disconnects", "Clients that left early.", ["stage"], registry=registry
        )
        self._stream_failures = Counter(
            "tandem_router_stream_failures", "Streams that ended with an error event.", registry=registry
        )
        self._refused = Counter(
            "tandem_router_handoffs_refused", "Handoffs that a worker did not take.", ["reason"], registry=registry
        )
        self._without_handoff = Counter(
            "tandem_router_prefill_without_handoff",
            "Good prefill answers without a handoff: the engine runs without the KV connector.",
            registry=registry,
        )
        self._retries = Counter("tandem_router_retries", "Second attempts.", ["leg"], registry=registry)
        queue_waits = histogram(
            "queue_wait_seconds", "One wait for room on a role's workers, if there was any.", TTFT_BUCKETS_S
        )
        self.lifecycle = LifecycleMetrics(
            registry, paths=self._paths, observe_queue_wait=queue_waits.observe, workers=workers
        )
        # A rate over a series that only appears with its first event misses that event.
        for leg in (Stage.PREFILL, Stage.DECODE):
            self._retries.labels(leg.value)
        for stage in Stage:
            self._disconnects.labels(stage.value)
        for reason in (*Refusal, None):
            self._refused.labels(reason or OTHER_REASON)

    def count_path(self, route: Route, reason: str) -> None:
        self._paths.add(route, reason)

    def count_release(self, reason: str) -> None:
        self._releases.labels(reason).inc()

    def count_release_failure(self) -> None:
        self._release_failures.inc()

    def count_retry(self, leg: str) -> None:
        self._retries.labels(leg).inc()

    def count_handoff_refused(self, reason: Refusal | None) -> None:
        self._refused.labels(reason or OTHER_REASON).inc()

    def count_prefill_without_handoff(self) -> None:
        self._without_handoff.inc()

    def observe_prefill(self, seconds: float, num_blocks: int) -> None:
        self._prefill.observe(seconds)
        self._blocks.observe(num_blocks)

    def observe_request(self, ctx: RequestContext, end_s: float) -> None:
        """The request is over, whichever way."""
        path = ctx.plan.route if ctx.plan is not None else "none"
        self._requests.add(ctx.endpoint, ctx.model, ctx.status, path)
        if ctx.status == CLIENT_LEFT_STATUS:
            self._disconnects.labels(ctx.stage.value).inc()
        is_good = ctx.status == 200 and ctx.stage is Stage.DONE
        if ctx.status == 200 and not is_good:
            self._stream_failures.inc()
        if is_good and ctx.first_byte_s is not None:
            self._ttft.observe(ctx.first_byte_s - ctx.start_s)
            self._e2e.observe(end_s - ctx.start_s)

    def collect(self) -> Iterable[Metric]:
        """What ``render`` writes, for a sum over several processes."""
        return self._registry.collect()

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)


class _KeyCollector(Collector):
    """Requests by the name of their API key; nothing where no keys are configured."""

    def __init__(self, usage: KeyUsage) -> None:
        self._usage = usage

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "tandem_router_key_requests", "Requests answered, by API key.", labels=["key", "code"]
        )
        for name, status, number in self._usage.requests():
            requests.add_metric([name, str(status)], number)
        in_flight = GaugeMetricFamily(
            "tandem_router_key_requests_in_flight", "Requests not yet answered, by API key.", labels=["key"]
        )
        for name, number in self._usage.in_flight():
            in_flight.add_metric([name], number)
        tokens = CounterMetricFamily(
            "tandem_router_key_tokens", "Tokens of good answers, by API key.", labels=["key", "kind"]
        )
        for name, kind, number in self._usage.tokens():
            tokens.add_metric([name, kind], number)
        without = CounterMetricFamily(
            "tandem_router_key_requests_without_usage",
            "Good answers that did not say how many tokens they took, by API key.",
            labels=["key"],
        )
        for name, number in self._usage.without_usage():
            without.add_metric([name], number)
        return requests, in_flight, tokens, without


class _WorkerCollector(Collector):
    """What workers reported last, read from the registry when scraped."""

    def __init__(self, workers: Callable[[], Sequence[Worker]]) -> None:
        self._workers = workers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        workers = self._workers()
        yield self._states(workers)
        yield from self._reports(workers)
        yield _bytes_per_handoff(workers)

    @staticmethod
    def _states(workers: Sequence[Worker]) -> Metric:
        counts = {(role.value, state): 0 for role in WorkerRole for state in [*WorkerState, "suspect"]}
        for worker in workers:
            counts[worker.role.value, "suspect" if worker.is_suspect else worker.status.state.value] += 1
        family = GaugeMetricFamily("tandem_router_workers", "Known workers.", labels=["role", "state"])
        for labels, value in counts.items():
            family.add_metric(list(labels), value)
        return family

    @staticmethod
    def _reports(workers: Sequence[Worker]) -> Iterable[Metric]:
        labels = ["worker", "role"]
        num_bytes = CounterMetricFamily("tandem_router_worker_kv_bytes", "KV bytes a worker has read.", labels=labels)
        handoffs = CounterMetricFamily("tandem_router_worker_kv_handoffs", "Handoffs a worker has read.", labels=labels)
        blocks = CounterMetricFamily("tandem_router_worker_kv_blocks", "KV blocks a worker has read.", labels=labels)
        failures = CounterMetricFamily("tandem_router_worker_kv_failures", "Reads that failed.", labels=labels)
        leases = GaugeMetricFamily("tandem_router_worker_leases", "Handoffs a worker still holds.", labels=labels)
        for worker in workers:
            values, status = [worker.worker_id, worker.role.value], worker.status
            num_bytes.add_metric(values, status.kv_bytes_total)
            handoffs.add_metric(values, status.kv_handoffs_total)
            blocks.add_metric(values, status.kv_blocks_total)
            failures.add_metric(values, status.kv_failures_total)
            leases.add_metric(values, status.num_leases)
        return num_bytes, handoffs, blocks, failures, leases


def _bytes_per_handoff(workers: Sequence[Worker]) -> Metric:
    readers = [worker.status for worker in workers if worker.role is WorkerRole.DECODE]
    num_handoffs = sum(status.kv_handoffs_total for status in readers)
    num_bytes = sum(status.kv_bytes_total for status in readers)
    return GaugeMetricFamily(
        "tandem_router_kv_bytes_per_handoff",
        "KV bytes moved for one request, mean over what decode workers report; 0 before the first.",
        value=num_bytes / num_handoffs if num_handoffs else 0.0,
    )
