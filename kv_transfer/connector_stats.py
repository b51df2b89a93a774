"""What the connector counts, how counts travel inside vLLM, and the ``tandem_kv_*`` metrics made of them."""

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)

from kv_transfer.agent import ReadTelemetry

# One row of a real model is about 2 MB; a 512K-token context has 4,096 rows.
_BYTES_BUCKETS = [float(1 << n) for n in range(16, 36, 2)]
_SECONDS_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]

COUNTERS = {
    "reads": "NIXL reads finished (one for each handoff and source rank)",
    "blocks": "KV blocks read",
    "posted_descriptors": "descriptors posted to NIXL",
    "descriptors": "descriptors after NIXL merged neighbours",
    "bytes": "bytes of KV read",
    "failures": "handoffs whose KV could not be read",
    "expired_reads": "handoffs refused by decode because their lease had run out",
    "refused": "handoffs refused by decode as malformed or not fitting the request",
    "leases_granted": "handoffs whose blocks prefill promised to keep",
    "leases_released": "leases ended by an explicit release",
    "leases_expired": "leases ended by their deadline, unread",
}
_HISTOGRAMS = {
    "handoff_bytes": ("bytes of KV moved for one request", _BYTES_BUCKETS),
    "transfer_seconds": ("seconds from posting a read until it was done", _SECONDS_BUCKETS),
    "queue_seconds": ("seconds from the scheduler's wish until the read was posted", _SECONDS_BUCKETS),
}


class RowConnectorStats(KVConnectorStats):
    """Counts since the last collection: ``data`` maps a counter to a number and a histogram to its samples."""

    data: dict[str, Any]

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data or {})

    def count(self, name: str, by: int = 1) -> None:
        assert name in COUNTERS, name
        self.data[name] = self.data.get(name, 0) + by

    def record_read(self, telemetry: ReadTelemetry, *, num_blocks: int) -> None:
        self.count("reads")
        self.count("blocks", num_blocks)
        self.count("posted_descriptors", telemetry.num_posted)
        self.count("descriptors", telemetry.num_descriptors)
        self.count("bytes", telemetry.num_bytes)
        self.sample("handoff_bytes", telemetry.num_bytes)
        self.sample("transfer_seconds", telemetry.transfer_s)

    def sample(self, name: str, value: float) -> None:
        assert name in _HISTOGRAMS, name
        self.data.setdefault(name, []).append(value)

    def set_leases(self, num_leases: int) -> None:
        self.data["leases"] = num_leases

    def take(self) -> "RowConnectorStats | None":
        """The counts so far as a new object, and start again; None when there are none."""
        if not self.data:
            return None
        taken = RowConnectorStats(self.data)
        self.data = {}
        return taken

    def reset(self) -> None:
        self.data = {}

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> "RowConnectorStats":
        for name, value in other.data.items():
            if name == "leases":
                self.data[name] = value
            elif isinstance(value, list):
                self.data.setdefault(name, []).extend(value)
            else:
                self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """A line for vLLM's periodic log."""
        seconds = sum(self.data.get("transfer_seconds", []))
        num_bytes = self.data.get("bytes", 0)
        line: dict[str, int | float] = {name: self.data[name] for name in COUNTERS if name in self.data}
        if seconds:
            line["GB/s"] = round(num_bytes / seconds / 1e9, 3)
        return line


class RowConnectorMetrics(KVConnectorPromMetrics):
    """``tandem_kv_*`` in the registry of the engine's API process."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counters = {
            name: self._counter_cls(name=f"tandem_kv_{name}_total", documentation=text, labelnames=labelnames)
            for name, text in COUNTERS.items()
        }
        histograms = {
            name: self._histogram_cls(
                name=f"tandem_kv_{name}", documentation=text, buckets=buckets, labelnames=labelnames
            )
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        leases = self._gauge_cls(
            name="tandem_kv_leases", documentation="handoffs whose blocks are held", labelnames=labelnames
        )
        # Children exist from the start, so that a scrape before the first request shows zeros.
        self._children = {
            engine: {
                name: metric.labels(*values) for name, metric in (counters | histograms | {"leases": leases}).items()
            }
            for engine, values in per_engine_labelvalues.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        children = self._children[engine_idx]
        for name, value in transfer_stats_data.items():
            if name == "leases":
                children[name].set(value)
            elif isinstance(value, list):
                for sample in value:
                    children[name].observe(sample)
            else:
                children[name].inc(value)
