"""``tandem_kv_*`` in the registry of the engine's API process, from the counts of ``connector_stats``."""

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, PromMetric, PromMetricT

from kv_transfer.connector_stats import COUNTERS, HISTOGRAMS, LABELLED_COUNTERS, LABELLED_GAUGES


class RowConnectorMetrics(KVConnectorPromMetrics):
    """One child for each engine and label; all exist from the start, so that a first scrape shows zeros."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._children: dict[int, dict[str, Any]] = {engine: {} for engine in per_engine_labelvalues}
        for name, text in COUNTERS.items():
            metric = self._counter_cls(name=f"tandem_kv_{name}_total", documentation=text, labelnames=labelnames)
            self._add_children(name, metric)
        for name, (text, buckets) in HISTOGRAMS.items():
            metric = self._histogram_cls(
                name=f"tandem_kv_{name}", documentation=text, buckets=buckets, labelnames=labelnames
            )
            self._add_children(name, metric)
        for cls, suffix, labelled in (
            (self._counter_cls, "_total", LABELLED_COUNTERS),
            (self._gauge_cls, "", LABELLED_GAUGES),
        ):
            for name, (text, label, values) in labelled.items():
                metric = cls(name=f"tandem_kv_{name}{suffix}", documentation=text, labelnames=[*labelnames, label])
                for value in values:
                    self._add_children(f"{name}:{value}", metric, value)
        self._gauges = {f"{name}:{value}" for name, (_, _, values) in LABELLED_GAUGES.items() for value in values}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        children = self._children[engine_idx]
        for name, value in transfer_stats_data.items():
            if name in self._gauges:
                children[name].set(value)
            elif isinstance(value, list):
                for sample in value:
                    children[name].observe(sample)
            else:
                children[name].inc(value)

    def _add_children(self, name: str, metric: Any, *labels: str) -> None:
        for engine, values in self.per_engine_labelvalues.items():
            self._children[engine][name] = metric.labels(*values, *labels)
