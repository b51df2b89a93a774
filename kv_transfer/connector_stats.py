"""What the connector counts, and how counts travel inside vLLM: plain numbers and lists under flat names.

A name with a label is written ``name:label``. ``connector_metrics`` makes Prometheus metrics of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from kv_transfer.agent import ReadTelemetry
from kv_transfer.lease import DropReason, LeaseState
from kv_transfer.transport import Kind
from wire.refusal import Refusal

# One row of a real model is about 2 MB; a 512K-token context has 4,096 rows.
_BYTES_BUCKETS = [float(1 << n) for n in range(16, 36, 2)]
_SECONDS_BUCKETS = [factor * 10.0**power for power in range(-5, 1) for factor in (1, 2.5, 5)] + [10.0]
_RATE_BUCKETS = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0, 800.0]

COUNTERS = {
    "reads": "NIXL reads finished (one for each handoff and source rank)",
    "blocks": "KV blocks read, counted once for each decode rank",
    "posted_descriptors": "descriptors posted to NIXL",
    "descriptors": "descriptors after NIXL merged neighbours",
    "bytes": "bytes of KV read",
    "failures": "handoffs whose KV did not cross",
    "expired_reads": "handoffs whose blocks prefill had taken back before they were read",
    "recomputes": "prompts computed on decode because their handoff was refused or did not cross",
    "wrong_transports": "times that UCX chose a link of no required kind",
    "leases_granted": "handoffs whose blocks prefill promised to keep",
}
LABELLED_COUNTERS: dict[str, tuple[str, str, list[str]]] = {
    "refusals": ("handoffs refused unread", "reason", [reason.value for reason in Refusal]),
    "leases_ended": ("leases that ended unread", "reason", [reason.value for reason in DropReason]),
}
LABELLED_GAUGES: dict[str, tuple[str, str, list[str]]] = {
    "transport": ("1 for each kind of link that reads have taken", "kind", list(get_args(Kind))),
    "leases": ("handoffs whose blocks are held", "state", [state.value for state in LeaseState]),
}
HISTOGRAMS = {
    "handoff_bytes": ("bytes of KV moved for one request to one decode rank", _BYTES_BUCKETS),
    "queue_seconds": ("seconds from the scheduler's wish until the reads were posted", _SECONDS_BUCKETS),
    "post_seconds": ("seconds that posting one request's reads took", _SECONDS_BUCKETS),
    "wire_seconds": ("seconds from posting one request's slowest read until it was done", _SECONDS_BUCKETS),
    "gigabytes_per_second": ("bytes over wire seconds of one request, in 1e9 bytes a second", _RATE_BUCKETS),
    "descriptors_per_block": ("descriptors posted for one block of one request", [1.0, 2.0, 3.0, 4.0, 8.0, 16.0]),
}


class RowConnectorStats(KVConnectorStats):
    """Counts since the last collection: ``data`` maps a counter or gauge to a number, a histogram to its samples."""

    data: dict[str, Any]

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data or {})

    def count(self, name: str, by: int = 1) -> None:
        assert name in COUNTERS, name
        self._add(name, by)

    def refuse(self, reason: Refusal) -> None:
        """A handoff was refused."""
        self._add(f"refusals:{reason.value}", 1)

    def end_lease(self, reason: DropReason) -> None:
        """A lease ended without being read."""
        self._add(f"leases_ended:{reason.value}", 1)

    def set_leases(self, num_in_state: Mapping[str, int]) -> None:
        for state, number in num_in_state.items():
            self.data[f"leases:{state}"] = number

    def set_transport(self, kind: Kind) -> None:
        """Reads have taken a link of this kind."""
        self.data[f"transport:{kind}"] = 1

    def record_pull(self, reads: Sequence[ReadTelemetry], *, num_blocks: int) -> None:
        """One request's rows have arrived on one decode rank, from one or several source ranks."""
        num_posted, num_bytes = sum(read.num_posted for read in reads), sum(read.num_bytes for read in reads)
        wire_s = max((read.transfer_s for read in reads), default=0.0)
        self.count("reads", len(reads))
        self.count("blocks", num_blocks)
        self.count("posted_descriptors", num_posted)
        self.count("descriptors", sum(read.num_descriptors for read in reads))
        self.count("bytes", num_bytes)
        self.sample("handoff_bytes", num_bytes)
        self.sample("post_seconds", sum(read.post_s for read in reads))
        self.sample("wire_seconds", wire_s)
        self.sample("descriptors_per_block", num_posted / num_blocks)
        if wire_s > 0:
            self.sample("gigabytes_per_second", num_bytes / wire_s / 1e9)

    def sample(self, name: str, value: float) -> None:
        assert name in HISTOGRAMS, name
        self.data.setdefault(name, []).append(value)

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
            if name.partition(":")[0] in LABELLED_GAUGES:
                self.data[name] = value
            elif isinstance(value, list):
                self.data.setdefault(name, []).extend(value)
            else:
                self._add(name, value)
        return self

    def reduce(self) -> dict[str, int | float]:
        """A line for vLLM's periodic log."""
        seconds = sum(self.data.get("wire_seconds", []))
        line: dict[str, int | float] = {name: value for name, value in self.data.items() if not isinstance(value, list)}
        if seconds:
            line["GB/s"] = round(self.data.get("bytes", 0) / seconds / 1e9, 3)
        return line

    def _add(self, name: str, by: int) -> None:
        self.data[name] = self.data.get(name, 0) + by
