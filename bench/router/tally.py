"""What the load generator saw in one round. Pure."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bench.router.chats import Template


def percentile(sorted_values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of all don't exceed. Raises: ValueError: there are no values."""
    if not sorted_values:
        raise ValueError("no values")
    rank = -(-len(sorted_values) * percent // 100)
    return sorted_values[max(0, int(rank) - 1)]


def summary_ms(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p99 and maximum in ms; empty where nothing was measured."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    points = {"p50": percentile(ordered, 50), "p99": percentile(ordered, 99), "max": ordered[-1]}
    return {name: round(1e3 * value, 4) for name, value in points.items()}


@dataclass(slots=True)
class Tally:
    """Times in seconds and counts of one round; ``answer`` is the good one, ``num_tokens`` its tokens if streamed."""

    answer: Template
    num_tokens: int
    num_good: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    ttft_s: "array[float]" = field(default_factory=lambda: array("d"))
    gaps_s: "array[float]" = field(default_factory=lambda: array("d"))
    """Between two arrivals of one stream: tokens that come together have one arrival."""

    def finish(self, tag: bytes, status: int, body: bytes, sent_s: float, arrivals_s: Sequence[float]) -> None:
        """Judge one answer and keep its times."""
        fault = find_fault(status, body, self.answer.filled(tag))
        if fault is not None:
            self.errors[fault] += 1
            return
        self.num_good += 1
        self.ttft_s.append(arrivals_s[0] - sent_s)
        if self.num_tokens:
            self.gaps_s.extend(b - a for a, b in pairwise(arrivals_s))

    def report(self) -> dict[str, object]:
        """For the result file. Times in ms."""
        return {
            "num_requests": self.num_good,
            "num_tokens": self.num_good * self.num_tokens,
            "errors": dict(self.errors),
            "ttft_ms": summary_ms(self.ttft_s),
            "gap_ms": summary_ms(self.gaps_s),
        }


def find_fault(status: int, body: bytes, expected: bytes) -> str | None:
    """What is wrong with an answer; None: nothing. Routers relay bytes, so every one of them must be there."""
    if status != 200:
        return f"status {status}"
    if body == expected:
        return None
    return "body cut short" if expected.startswith(body) else "wrong body"
