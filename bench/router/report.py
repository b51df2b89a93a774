"""The result as tables for readers. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.router.must import DIRECT, PEER, SILENT_FAULTS, Round, Verdict, added_ms, cpu_ratio, cpu_us

HEADS = (
    *("router", "CPU us", "lowest-highest", "of vllm-router", "requests/s", "TTFT p50 / p99 ms", "added ms"),
    *("gap p50 / p99 ms", "added ms", "peak RSS MB", "errors", "silent faults", "router core", "other core"),
)


def tables(result: dict[str, Any]) -> str:
    """Markdown: a heading and a table for each case, one line a router; medians over rounds."""
    parts = []
    for case in result["cases"]:
        lines = [f"### {case['name']}: {case['about']}; CPU a {case['unit']}", ""]
        lines += ["| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
        lines += [_line(case, name) for name in case["routers"]]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def heading(result: dict[str, Any]) -> str:
    """The command, the commit, the machine, the versions and how the load of the machine was."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    load = " -> ".join(f"{value:.1f}" for value in result["load_average"])
    pauses = " and ".join(f"{one['p99']:.2f}" for one in result["pauses_ms"])
    halting = "may halt" if result["cores"]["may_halt"] else "are kept awake in paced cases"
    return (
        f"`{result['command']}` at {result['commit']}\n\n{result['hardware']}; {versions}; router on core "
        f"{result['cores']['router']}, mocks and load on core {result['cores']['load']}, which {halting}; "
        f"load average {load}; pauses of the machine itself on the router's core before and after, p99: {pauses} ms"
    )


def judged(found: Sequence[Verdict]) -> str:
    """One line for each demand and case."""
    return "\n".join(
        f"{'pass' if one.is_met else 'FAIL'}: {one.case}: {one.demand}: {one.measured:g}, at most {one.limit:g}"
        for one in found
    )


def _line(case: dict[str, Any], name: str) -> str:
    rounds: list[Round] = case["routers"][name]
    cells = [name, *_cpu(case, name, rounds)]
    cells.append(f"{median(one['num_requests'] / one['wall_s'] for one in rounds):.0f}")
    for what in ("ttft", "gap"):
        cells += _times(case, name, what, rounds)
    peaks = [max(one["rss_mb"]) for one in rounds if one["rss_mb"]]
    cells.append(f"{max(peaks):.0f}" if peaks else "")
    cells.append(str(sum(sum(one["errors"].values()) for one in rounds)))
    cells.append(str(sum(one["engines"][fault] for one in rounds for fault in SILENT_FAULTS)))
    cells.append(_share(rounds, "router"))
    cells.append(_share(rounds, "mocks", "load"))
    return "| " + " | ".join(cells) + " |"


def _cpu(case: dict[str, Any], name: str, rounds: Sequence[Round]) -> list[str]:
    if name == DIRECT or not all(one["num_requests"] for one in rounds):
        return ["", "", ""]
    us = sorted(cpu_us(case, one) for one in rounds)
    peer = case["routers"].get(PEER, [])
    ratio = f"{cpu_ratio(case, name, PEER):.2f}" if peer and all(one["num_requests"] for one in peer) else ""
    return [f"{median(us):.1f}", f"{us[0]:.1f}-{us[-1]:.1f}", ratio]


def _times(case: dict[str, Any], name: str, what: str, rounds: Sequence[Round]) -> list[str]:
    key = f"{what}_ms"
    if not all(one[key] for one in rounds):
        return ["", ""]
    points = " / ".join(f"{median(one[key][point] for one in rounds):.2f}" for point in ("p50", "p99"))
    if name == DIRECT or not all(one[key] for one in case["routers"][DIRECT]):
        return [points, ""]
    return [points, " / ".join(f"{added_ms(case, name, what, point):.2f}" for point in ("p50", "p99"))]


def _share(rounds: Sequence[Round], *names: str) -> str:
    """Part of a core that these had: near 100% on the other core means that mocks or load were the limit."""
    return f"{100 * median(sum(one['cpu_s'][name] for name in names) / one['wall_s'] for one in rounds):.0f}%"
