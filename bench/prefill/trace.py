"""From the kernels of a step to its communication, and how much of that no computing hides. Pure; times are in us."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["communication", "compute"]
# Parts of the names of kernels that move data between GPUs: NCCL's and RCCL's, then vLLM's own all-reduces (custom,
# quick, of AITER), torch's and FlashInfer's on symmetric memory, and copies between two devices.
COMMUNICATION = (
    "nccl",
    "rccl",
    "cross_device_reduce",
    "allreduce_prototype",
    "multimem_all_reduce",
    "two_shot_all_reduce",
    "one_shot_all_reduce",
    "allreduce_fusion",
    "trtllm_allreduce",
    "memcpy ptop",
)
# Kernels of one kind on one stream that follow each other as closely as this are one span of a reduced trace.
JOINED_GAP_US = 2.0

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel or copy on a device."""

    name: str
    stream: int
    start_us: float
    end_us: float

    @property
    def kind(self) -> Kind:
        name = self.name.lower().replace(" ", "")
        return "communication" if any(part.replace(" ", "") in name for part in COMMUNICATION) else "compute"


@dataclass(frozen=True, slots=True)
class Overlap:
    """What one step's time was made of; times of streams side by side count once."""

    step_us: float
    """From the start of the first kernel to the end of the last."""
    communication_us: float
    compute_us: float
    exposed_us: float
    """Communication while nothing computes."""
    idle_us: float
    """Neither; the host was too slow."""

    @property
    def hidden(self) -> float:
        """Share of the communication that is under compute; 1 where there is none."""
        return 1 - self.exposed_us / self.communication_us if self.communication_us else 1.0

    def as_dict(self) -> dict[str, float]:
        return {name: round(value, 1) for name, value in asdict(self).items()} | {"hidden": round(self.hidden, 4)}


def overlap_of(kernels: Sequence[Kernel]) -> Overlap:
    """Raises ValueError where nothing ran: a trace without kernels shows nothing."""
    if not kernels:
        raise ValueError("the trace has no kernel")
    communication = union((k.start_us, k.end_us) for k in kernels if k.kind == "communication")
    compute = union((k.start_us, k.end_us) for k in kernels if k.kind == "compute")
    busy = union((*communication, *compute))
    step_us, busy_us = busy[-1][1] - busy[0][0], length(busy)
    return Overlap(
        step_us=step_us,
        communication_us=length(communication),
        compute_us=length(compute),
        exposed_us=busy_us - length(compute),
        idle_us=step_us - busy_us,
    )


def mean_of_dicts(overlaps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of several ranks, as ``Overlap.as_dict`` says them: one that comes early waits inside its collective."""
    return {name: round(sum(one[name] for one in overlaps) / len(overlaps), 4) for name in overlaps[0]}


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times without overlaps, in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def reduced(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """Spans of one kind on one stream, from the first kernel's start on; small enough to keep beside a result."""
    first_us = min((k.start_us for k in kernels), default=0.0)
    spans: list[dict[str, Any]] = []
    last: dict[int, dict[str, Any]] = {}
    for kernel in sorted(kernels, key=lambda k: k.start_us):
        start_us, end_us = round(kernel.start_us - first_us, 1), round(kernel.end_us - first_us, 1)
        span = last.get(kernel.stream)
        if span is not None and span["kind"] == kernel.kind and start_us - span["end_us"] <= JOINED_GAP_US:
            span["end_us"] = max(span["end_us"], end_us)
            span["kernels"] += 1
            continue
        span = {"stream": kernel.stream, "kind": kernel.kind, "start_us": start_us, "end_us": end_us, "kernels": 1}
        last[kernel.stream] = span
        spans.append(span)
    return spans


def longest(kernels: Sequence[Kernel], count: int = 12) -> list[dict[str, Any]]:
    """The names that take most time, for readers."""
    total: dict[tuple[str, Kind], tuple[float, int]] = {}
    for kernel in kernels:
        us, number = total.get((kernel.name, kernel.kind), (0.0, 0))
        total[kernel.name, kernel.kind] = (us + kernel.end_us - kernel.start_us, number + 1)
    ranked = sorted(total.items(), key=lambda item: -item[1][0])[:count]
    return [
        {"name": name[:100], "kind": kind, "us": round(us, 1), "kernels": number}
        for (name, kind), (us, number) in ranked
    ]
