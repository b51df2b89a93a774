"""Metrics of several processes read as those of one: sums, in which no counter goes backwards when a process ends."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from router.metric_sums import Family, Sample, add, cumulative
from router.process_metrics import families_of, render

NUM_PROCESSES = 3


def counter(value: float, **labels: str) -> Family:
    sample = Sample("answers_total", tuple(sorted(labels.items())), value)
    return Family("answers", "counter", "Answers.", (sample,))


def gauge(value: float) -> Family:
    return Family("waiting", "gauge", "Waiting.", (Sample("waiting", (), value),))


def value_of(families: tuple[Family, ...], name: str, **labels: str) -> float:
    key = (name, tuple(sorted(labels.items())))
    [value] = [sample.value for family in families for sample in family.samples if sample[:2] == key]
    return value


def a_registry(num: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("answers", "Answers.", ["code"], registry=registry).labels("200").inc(num)
    Gauge("waiting", "Waiting.", registry=registry).set(num)
    Histogram("wait_seconds", "Waits.", buckets=(1, 2), registry=registry).observe(num)
    return registry


def test_each_sample_is_added_up_once_by_name_and_labels() -> None:
    groups = [[counter(1, code="200"), gauge(2)], [counter(3, code="200"), gauge(4)], [counter(5, code="503")]]
    total = add(groups)
    assert [family.name for family in total] == ["answers", "waiting"]
    assert value_of(total, "answers_total", code="200") == 4
    assert value_of(total, "answers_total", code="503") == 5
    assert value_of(total, "waiting") == 6


def test_the_buckets_of_a_histogram_add_up() -> None:
    total = add([families_of(a_registry(num).collect()) for num in (1, 2, 3)])
    assert [value_of(total, "wait_seconds_bucket", le=le) for le in ("1.0", "2.0", "+Inf")] == [1, 2, 3]
    assert (value_of(total, "wait_seconds_count"), value_of(total, "wait_seconds_sum")) == (3, 6)


def test_times_of_creation_and_start_are_the_earliest() -> None:
    def at(time_s: float) -> Family:
        samples = tuple(Sample(name, (), time_s) for name in ("answers_created", "process_start_time_seconds"))
        return Family("answers", "counter", "", samples)

    total = add([[at(5)], [at(3)], [at(4)]])
    assert [sample.value for family in total for sample in family.samples] == [3, 3]


def test_of_a_process_that_has_ended_gauges_count_no_more() -> None:
    assert cumulative([counter(1), gauge(2)]) == (counter(1),)


def test_a_text_stays_what_it_is_on_the_way_between_processes() -> None:
    registry = a_registry(2)
    assert render(families_of(registry.collect())) == generate_latest(registry)


@given(st.lists(st.tuples(st.integers(0, NUM_PROCESSES - 1), st.sampled_from(["count", "report", "end"]))))
def test_no_counter_goes_backwards_whatever_ends_when(steps: list[tuple[int, str]]) -> None:
    counts, reported = [0] * NUM_PROCESSES, [counter(0)] * NUM_PROCESSES
    ended: tuple[Family, ...] = ()
    shown = 0.0
    for process, step in steps:
        if step == "count":
            counts[process] += 1
        elif step == "report":
            reported[process] = counter(counts[process])
        else:
            ended = add([ended, cumulative([reported[process]])])
            counts[process], reported[process] = 0, counter(0)
        now = value_of(add([ended, reported]), "answers_total")
        assert now >= shown
        shown = now
