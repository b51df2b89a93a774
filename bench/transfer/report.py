"""The result as tables for readers."""

from collections.abc import Sequence
from typing import Any

from bench.transfer.must import Verdict


def rates(result: dict[str, Any]) -> str:
    """Markdown: GB/s, one line a case, one column a peer."""
    names = list(dict.fromkeys(name for case in result["cases"] for name in case["peers"]))
    lines = ["| blocks | pattern | at once | " + " | ".join(names) + " |", "|---" * (3 + len(names)) + "|"]
    for case in result["cases"]:
        cells = [f"{case['peers'][name]['gb_per_s']:.1f}" if name in case["peers"] else "" for name in names]
        lines.append(f"| {case['num_blocks']} | {case['pattern']} | {case['num_requests']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def times(result: dict[str, Any]) -> str:
    """Markdown: us to post / us in all (descriptors after merging), one line a case, one column a peer on NIXL."""
    cases = result["cases"]
    names = list(dict.fromkeys(n for case in cases for n, got in case["peers"].items() if got["descriptors"]))
    lines = ["| blocks | pattern | at once | " + " | ".join(names) + " |", "|---" * (3 + len(names)) + "|"]
    for case in cases:
        got = [case["peers"][name] for name in names]
        cells = [f"{one['post_us']:.0f} / {one['us']:.0f} ({one['descriptors']:.0f})" for one in got]
        lines.append(f"| {case['num_blocks']} | {case['pattern']} | {case['num_requests']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def heading(result: dict[str, Any]) -> str:
    """The command, the commit, the machine and the versions."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"`{result['command']}` at {result['commit']}\n\n{result['hardware']}; {versions}"


def judged(found: Sequence[Verdict]) -> str:
    """One line for each demand: how many cases keep it and the case that is nearest to its limit, or past it."""
    lines = []
    for demand in dict.fromkeys(verdict.demand for verdict in found):
        of_demand = [verdict for verdict in found if verdict.demand == demand]
        is_upper = demand.endswith("us")
        worst = (max if is_upper else min)(of_demand, key=lambda verdict: verdict.measured)
        num_met = sum(verdict.is_met for verdict in of_demand)
        state = "pass" if num_met == len(of_demand) else "FAIL"
        bound = "below" if is_upper else "at least"
        lines.append(
            f"{state}: {demand} {bound} {worst.limit:g}: {num_met} of {len(of_demand)} cases; "
            f"worst {worst.measured:g} ({worst.case})"
        )
    return "\n".join(lines)
