"""The metrics library's families as those that cross between processes, and back to text."""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from router.metric_sums import Family, Sample


def families_of(metrics: Iterable[Metric]) -> tuple[Family, ...]:
    """As they are now."""
    return tuple(
        Family(
            metric.name,
            metric.type,
            metric.documentation,
            tuple(
                Sample(sample.name, tuple(sorted(sample.labels.items())), float(sample.value))
                for sample in metric.samples
            ),
        )
        for metric in metrics
    )


def render(families: Sequence[Family]) -> bytes:
    """The exposition text."""
    registry = CollectorRegistry()
    registry.register(_Fixed(families))
    return generate_latest(registry)


class _Fixed(Collector):
    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.text, family.kind)
            for name, labels, value in family.samples:
                metric.add_sample(name, dict(labels), value)
            yield metric
