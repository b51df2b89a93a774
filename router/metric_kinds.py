"""Counters and histograms for what happens with each request or token, in one thread.

The library's own look up a child by copied labels and take a lock at each step: several times the cost.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class LabelledCounter(Collector):
    """Counts by label values, which may be anything that reads well as text.

    Args:
        name: without ``_total``.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counts: dict[tuple[object, ...], int] = {}

    def add(self, *values: object, number: int = 1) -> None:
        """``number`` 0 makes the series appear: a rate over one that appears with its first event misses that."""
        self._counts[values] = self._counts.get(values, 0) + number

    def describe(self) -> Iterable[Metric]:
        return [CounterMetricFamily(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        # Copied at once: a scrape may run in another thread than the requests.
        for values, number in list(self._counts.items()):
            family.add_metric([str(value) for value in values], number)
        yield family


class Histogram(Collector):
    """Observations by upper bound, and their sum."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._text)]

    def collect(self) -> Iterable[Metric]:
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)
