"""The router's metrics are all documented, and their cheap kinds read like the library's own."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.app import build_parts
from router.config import RouterConfig
from router.metric_kinds import Histogram, LabelledCounter

TEXT = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def test_every_metric_is_in_the_docs() -> None:
    rendered = build_parts(RouterConfig()).metrics.render().decode()
    names = [family.name for family in text_string_to_metric_families(rendered)]
    ours = [name.removeprefix("tandem_router_") for name in names if name.startswith("tandem_router_")]
    ours = [name for name in ours if not name.endswith("_created")]
    ours += ["processes", "process_restarts"]  # which a router of several has besides
    assert len(ours) > 30
    for name in ours:
        assert f"`{name}`" in TEXT or f"`{name}{{" in TEXT or f"`{name}_total" in TEXT, name


def test_a_counter_shows_a_series_before_its_first_event() -> None:
    registry, counter = CollectorRegistry(), LabelledCounter("things", "Things.", ("kind", "code"))
    registry.register(counter)
    counter.add("a", 200, number=0)
    counter.add("b", 200)
    counter.add("b", 200)
    lines = generate_latest(registry).decode().splitlines()
    assert 'things_total{code="200",kind="a"} 0.0' in lines
    assert 'things_total{code="200",kind="b"} 2.0' in lines


@pytest.mark.parametrize(("value", "counts"), [(0.5, [1, 1, 1]), (1, [1, 1, 1]), (1.5, [0, 1, 1]), (9, [0, 0, 1])])
def test_a_histogram_counts_up_to_and_with_each_bound(value: float, counts: list[int]) -> None:
    registry, histogram = CollectorRegistry(), Histogram("sizes", "Sizes.", (1, 2))
    registry.register(histogram)
    histogram.observe(value)
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in next(iter(registry.collect())).samples}
    assert [found["sizes_bucket", bound] for bound in ("1.0", "2.0", "+Inf")] == counts
    assert found["sizes_sum", None] == value
    assert found["sizes_count", None] == 1
