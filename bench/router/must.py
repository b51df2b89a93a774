"""must-2: what the router's CPU time, latency and memory have to stay below, checked on a result. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

US, PEER, DIRECT = "tandem", "vllm-router", "direct"
MAX_OF_PEER = {"small32": 1.0, "small128": 1.0, "stream": 1.6, "big": 1.0}
MAX_ADDED_TTFT_MS = {"p50": 0.6, "p99": 2.0}
# "No added gap": what is left below is the noise of two measurements, a hundredth and a tenth of the 10 ms gap.
MAX_ADDED_GAP_MS = {"p50": 0.1, "p99": 1.0}
MAX_RSS_MB = 100.0
# Above it mocks or load were the limit, and what was measured is a router that waits for them.
MAX_OTHER_CORE = 0.95
# A machine that stops its programs longer than that now and then shows in a p99 of any router, so that none is judged.
MAX_PAUSE_MS = 0.5
# Counted at the engines: each of them is a request that was served wrongly although the client saw a good answer.
SILENT_FAULTS = ("no_handoff", "wrong_handoff", "other_prompt", "dirty_prefill", "bad_request", "live")

Round = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One demand on one case: a measured number, the most that it may be, and whether it keeps to it."""

    demand: str
    case: str
    measured: float
    limit: float

    @property
    def is_met(self) -> bool:
        return self.measured <= self.limit


def verdicts(result: dict[str, Any]) -> list[Verdict]:
    """Every demand on the cases that it speaks of.

    Raises:
        ValueError: a case or a router that a demand needs was not measured, or answered nothing, so that nothing was
            shown.
    """
    cases = {case["name"]: case for case in result["cases"]}
    missing = [name for name in (*MAX_OF_PEER, "paced") if name not in cases]
    if missing:
        raise ValueError(f"not measured: {', '.join(missing)}")
    found = [
        *(
            Verdict(f"CPU a {cases[name]['unit']} / {PEER}'s", name, cpu_ratio(cases[name], US, PEER), limit)
            for name, limit in MAX_OF_PEER.items()
        ),
        *_added(cases["stream"], "gap", MAX_ADDED_GAP_MS),
        *_added(cases["paced"], "ttft", MAX_ADDED_TTFT_MS),
        Verdict("pauses of the machine itself, p99, ms", "paced", pause_ms(result), MAX_PAUSE_MS),
    ]
    for name, case in cases.items():
        rounds = _rounds(case, US)
        shares = [other_core(one) for router in (US, PEER) for one in _rounds(case, router)]
        found.append(Verdict("mocks and load, part of their core", name, round(max(shares), 2), MAX_OTHER_CORE))
        # Of each process, the most that it ever had.
        found.append(Verdict("RSS of a process, MB", name, max(max(one["rss_mb"]) for one in rounds), MAX_RSS_MB))
        found.append(Verdict("errors", name, sum(sum(one["errors"].values()) for one in rounds), 0))
        silent = sum(one["engines"][fault] for one in rounds for fault in SILENT_FAULTS)
        found.append(Verdict("silent recomputes and lost leases", name, silent, 0))
    return found


def pause_ms(result: dict[str, Any]) -> float:
    """How long the machine stops a program on the router's core that does the same again and again, p99 in ms.

    Raises:
        ValueError: the result does not hold it.
    """
    if not result.get("pauses_ms"):
        raise ValueError("not measured: pauses of the machine")
    return max(float(one["p99"]) for one in result["pauses_ms"])


def cpu_us(case: dict[str, Any], one: Round) -> float:
    """CPU time of the router in one round, in us a request or a token. Raises: ValueError: nothing was answered."""
    count = one["num_tokens"] if case["unit"] == "token" else one["num_requests"]
    if not count:
        raise ValueError(f"{case['name']}: a round without an answer")
    return 1e6 * float(one["cpu_s"]["router"]) / float(count)


def other_core(one: Round) -> float:
    """Part of their core that mocks and load took in one round."""
    return float(one["cpu_s"]["mocks"] + one["cpu_s"]["load"]) / float(one["wall_s"])


def cpu_ratio(case: dict[str, Any], ours: str, theirs: str) -> float:
    """Median over rounds of the ratio within a round: the two were measured one after the other there."""
    return _paired(case, ours, theirs, lambda us, them: cpu_us(case, us) / cpu_us(case, them))


def added_ms(case: dict[str, Any], name: str, what: str, point: str) -> float:
    """Median over rounds of what a router adds to ``ttft`` or ``gap`` at p50 or p99, beside direct access."""
    key = f"{what}_ms"
    if not all(point in one[key] for router in (name, DIRECT) for one in _rounds(case, router)):
        raise ValueError(f"{case['name']}: a round without an answer")
    return _paired(case, name, DIRECT, lambda us, them: float(us[key][point]) - float(them[key][point]))


def _added(case: dict[str, Any], what: str, limits: dict[str, float]) -> Iterator[Verdict]:
    for point, limit in limits.items():
        yield Verdict(f"added {what}, {point}, ms", case["name"], added_ms(case, US, what, point), limit)


def _paired(case: dict[str, Any], ours: str, theirs: str, compare: Callable[[Round, Round], float]) -> float:
    pairs = zip(_rounds(case, ours), _rounds(case, theirs), strict=True)
    return round(median(compare(us, them) for us, them in pairs), 3)


def _rounds(case: dict[str, Any], name: str) -> list[Round]:
    if not case["routers"].get(name):
        raise ValueError(f"{case['name']}: {name} was not measured")
    rounds: list[Round] = case["routers"][name]
    return rounds
