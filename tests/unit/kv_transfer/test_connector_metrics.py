"""Everything that is counted shows in a scrape: at zero from the start, and with its value after it was observed."""

from typing import Any, get_args

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

from kv_transfer.connector_metrics import RowConnectorMetrics
from kv_transfer.connector_stats import (
    COUNTERS,
    HISTOGRAMS,
    LABELLED_COUNTERS,
    LABELLED_GAUGES,
    RowConnectorStats,
)
from kv_transfer.lease import DropReason, LeaseState
from kv_transfer.transport import Kind
from wire.refusal import Refusal

ENGINE = {"model_name": "nano", "engine": "0"}
LABELLED = [
    (f"{name}:{value}", f"tandem_kv_{name}{suffix}", label, value)
    for labelled, suffix in ((LABELLED_COUNTERS, "_total"), (LABELLED_GAUGES, ""))
    for name, (_, label, values) in labelled.items()
    for value in values
]


class Scrape:
    """vLLM's side of the metrics with a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        config: Any = None
        types: dict[Any, Any] = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
        self.metrics = RowConnectorMetrics(
            config,
            types,
            ["model_name", "engine"],
            {0: ["nano", "0"], 1: ["nano", "1"]},
        )

    def value(self, name: str, engine: str = "0", **labels: str) -> float | None:
        return self.registry.get_sample_value(name, ENGINE | {"engine": engine} | labels)


@pytest.fixture
def scrape(monkeypatch: pytest.MonkeyPatch) -> Scrape:
    def init(self: Any, config: Any, types: Any, labelnames: Any, per_engine: Any) -> None:
        self.per_engine_labelvalues = per_engine
        registry = made
        self._counter_cls = lambda **kw: Counter(**kw, registry=registry)
        self._gauge_cls = lambda **kw: Gauge(**kw, registry=registry)
        self._histogram_cls = lambda **kw: Histogram(**kw, registry=registry)

    made = CollectorRegistry()
    monkeypatch.setattr(KVConnectorPromMetrics, "__init__", init)
    return Scrape(made)


def test_the_labels_are_those_of_the_code_that_counts() -> None:
    assert LABELLED_COUNTERS["refusals"][2] == [reason.value for reason in Refusal]
    assert LABELLED_COUNTERS["leases_ended"][2] == [reason.value for reason in DropReason]
    assert LABELLED_GAUGES["leases"][2] == [state.value for state in LeaseState]
    assert LABELLED_GAUGES["transport"][2] == list(get_args(Kind))


@pytest.mark.parametrize("engine", ["0", "1"])
def test_a_first_scrape_shows_zeros_for_every_engine(scrape: Scrape, engine: str) -> None:
    for name in COUNTERS:
        assert scrape.value(f"tandem_kv_{name}_total", engine) == 0
    for name in HISTOGRAMS:
        assert scrape.value(f"tandem_kv_{name}_count", engine) == 0
    for _, metric, label, value in LABELLED:
        assert scrape.value(metric, engine, **{label: value}) == 0
    assert generate_latest(scrape.registry).count(b"# HELP tandem_kv_") >= len(COUNTERS) + len(HISTOGRAMS)


@pytest.mark.parametrize("name", COUNTERS)
def test_a_counter_adds_what_it_is_told(scrape: Scrape, name: str) -> None:
    for number in (2, 3):
        scrape.metrics.observe({name: number})
    assert scrape.value(f"tandem_kv_{name}_total") == 5
    assert scrape.value(f"tandem_kv_{name}_total", "1") == 0


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_a_histogram_takes_each_sample(scrape: Scrape, name: str) -> None:
    buckets = HISTOGRAMS[name][1]
    scrape.metrics.observe({name: [buckets[0], buckets[-1], buckets[-1] * 2]})
    assert scrape.value(f"tandem_kv_{name}_count") == 3
    assert scrape.value(f"tandem_kv_{name}_sum") == pytest.approx(buckets[0] + 3 * buckets[-1])
    assert scrape.value(f"tandem_kv_{name}_bucket", le=str(buckets[0])) == 1
    assert scrape.value(f"tandem_kv_{name}_bucket", le="+Inf") == 3


@pytest.mark.parametrize(("name", "metric", "label", "value"), LABELLED)
def test_a_labelled_count_goes_to_its_label_and_a_gauge_keeps_the_last(
    scrape: Scrape, name: str, metric: str, label: str, value: str
) -> None:
    for number in (4, 3):
        scrape.metrics.observe({name: number})
    is_gauge = name.partition(":")[0] in LABELLED_GAUGES
    assert scrape.value(metric, **{label: value}) == (3 if is_gauge else 7)


def test_all_that_the_connector_can_count_has_a_metric(scrape: Scrape) -> None:
    stats = RowConnectorStats()
    for name in COUNTERS:
        stats.count(name)
    for reason in Refusal:
        stats.refuse(reason)
    for end in DropReason:
        stats.end_lease(end)
    for kind in get_args(Kind):
        stats.set_transport(kind)
    stats.set_leases({state.value: 1 for state in LeaseState})
    for name in HISTOGRAMS:
        stats.sample(name, 1.0)
    scrape.metrics.observe(stats.data, 1)
    for name, metric, label, value in LABELLED:
        assert scrape.value(metric, "1", **{label: value}) == 1, name


def test_names_don_t_meet_vllm_s_own() -> None:
    taken = {sample.name for family in REGISTRY.collect() for sample in family.samples}
    assert not any(name.startswith("tandem_kv_") for name in taken)
