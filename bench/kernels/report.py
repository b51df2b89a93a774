"""The result as tables for readers. Pure."""

from collections.abc import Sequence
from typing import Any

from bench.kernels.must import Verdict


def floors_us(case: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Microseconds that each floor of a case takes at the ceilings of ``result``."""
    return {
        "bytes": case["floor"]["read_bytes"] / result["read_gb_per_s"] / 1e3,
        "flops": case["floor"]["flops"] / result["ceilings"]["tflops"] / 1e6,
        "int": case["floor"]["int_ops"] / result["ceilings"]["int_tops"] / 1e6,
    }


def table(result: dict[str, Any], op: str) -> str:
    """Markdown of one op: us a contender, speed-ups, and of ours GB/s, share of read bandwidth and the floors."""
    cases = [case for case in result["cases"] if case["op"] == op]
    names = list(dict.fromkeys(name for case in cases for name in case["us"]))
    peers = [name for name in names if name != "ours"]
    head = ["shape", "context", "batch", "rows", *(f"{name}, us" for name in names), *(f"x {name}" for name in peers)]
    head += ["GB/s", "of read bandwidth", "floor: bytes / flops / int, us"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for case in cases:
        us = case["us"]
        rate = case["floor"]["read_bytes"] / us["ours"] / 1e3
        floors = floors_us(case, result)
        cells = [case["shape"], f"{case['context'] // 1024}K", str(case["batch"]), str(case["query_rows"])]
        cells += [f"{us[name]:.1f}" if name in us else "" for name in names]
        cells += [f"{us[name] / us['ours']:.2f}" if name in us else "" for name in peers]
        cells += [f"{rate:.0f}", f"{rate / result['read_gb_per_s']:.0%}"]
        cells += [f"{floors['bytes']:.1f} / {floors['flops']:.1f} / {floors['int']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def heading(result: dict[str, Any]) -> str:
    """The command, the commit, the machine and the versions."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"`{result['command']}` at {result['commit']}\n\n{result['hardware']}; {versions}; "
        f"reads of device memory measured at {result['read_gb_per_s']:.0f} GB/s; {result['ceilings']['text']}"
    )


def judged(found: Sequence[Verdict]) -> str:
    """One line for each demand: how many cases keep it and the case that is nearest to its limit, or past it."""
    lines = []
    for demand in dict.fromkeys(verdict.demand for verdict in found):
        of_demand = [verdict for verdict in found if verdict.demand == demand]
        is_upper = "us behind" in demand
        worst = (max if is_upper else min)(of_demand, key=lambda verdict: verdict.measured)
        num_met = sum(verdict.is_met for verdict in of_demand)
        state = "pass" if num_met == len(of_demand) else "FAIL"
        bound = "at most" if is_upper else "at least"
        lines.append(
            f"{state}: {demand} {bound} {worst.limit:g}: {num_met} of {len(of_demand)} cases; "
            f"worst {worst.measured:g} ({worst.case})"
        )
    return "\n".join(lines)
