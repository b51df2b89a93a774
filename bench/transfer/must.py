"""must-7: what the transfer between two H200s has to reach, checked on a result file. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from bench.transfer.case import Pattern, cases
from bench.transfer.geometry import ROW_BYTES

MIN_SCATTERED_OF_COPY = 0.40
MIN_ADJACENT_OF_COPY = 0.80
MIN_OF_PAGES = 50.0
MAX_ONE_BLOCK_US = 80.0
MIN_OF_VLLM = 1.0
MANY_REQUESTS = 16
COPY_FROM_BLOCKS, PAGES_FROM_BLOCKS = 128, 32
JUDGED_PATTERNS: tuple[Pattern, ...] = ("scattered", "adjacent")
JUDGED_BLOCKS = (1, 32, 128, 512, 1024)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One demand on one case: a measured number, the limit that it is held to, and whether it keeps it."""

    demand: str
    case: str
    measured: float
    limit: float
    is_met: bool


def verdicts(result: dict[str, Any]) -> list[Verdict]:
    """Every demand on every case that it speaks of.

    Raises:
        ValueError: the result was not taken on CUDA or with rows of another size, or a case is missing, so that
            something was not shown.
    """
    if result["device"] != "cuda":
        raise ValueError("must-7 speaks of GPUs; this result was taken on CPU")
    if result["row_bytes"] != ROW_BYTES:
        raise ValueError(f"must-7 speaks of rows of {ROW_BYTES} bytes; these had {result['row_bytes']}")
    there = {(case["pattern"], case["num_blocks"], case["num_requests"]) for case in result["cases"]}
    absent = [case for case in cases(JUDGED_PATTERNS, JUDGED_BLOCKS, (1, MANY_REQUESTS)) if astuple(case) not in there]
    if absent:
        raise ValueError(f"not measured: {', '.join(map(str, map(astuple, absent)))}")
    # The rate of large copies: a small one is held up by its launch, and would be an easier mark.
    copy_gb_per_s = max(float(case["peers"]["copy"]["gb_per_s"]) for case in result["cases"])
    demands = _demands(copy_gb_per_s)
    found = [verdict for case in result["cases"] for verdict in _of_case(case, demands)]
    missing = {demand for demand, _ in demands} - {verdict.demand for verdict in found}
    if missing:
        raise ValueError(f"no case shows: {', '.join(sorted(missing))}")
    return found


def _of_case(case: dict[str, Any], demands: "list[tuple[str, Judge]]") -> Iterator[Verdict]:
    for demand, judge in demands:
        for measured, limit, is_met in judge(case):
            name = f"{case['pattern']}, {case['num_blocks']} blocks, {case['num_requests']} at once"
            yield Verdict(demand, name, round(measured, 3), limit, is_met)


Judge = Callable[[dict[str, Any]], Iterator[tuple[float, float, bool]]]


def _demands(copy_gb_per_s: float) -> list[tuple[str, Judge]]:
    def of_copy(pattern: str, limit: float) -> Judge:
        return lambda case: _of_copy(case, pattern, limit, copy_gb_per_s)

    return [
        ("scattered rows / peer copy", of_copy("scattered", MIN_SCATTERED_OF_COPY)),
        ("adjacent rows / peer copy", of_copy("adjacent", MIN_ADJACENT_OF_COPY)),
        ("scattered rows / 125 pages", _of_pages),
        ("one block, us", _one_block),
        *((f"rows / vLLM's connector, {name}", judge) for name, judge in _of_vllm_each()),
    ]


def _speed_up(case: dict[str, Any], other: str) -> float:
    """How many times as fast as the other peer our rows are, on the same bytes."""
    return float(case["peers"][other]["us"]) / float(case["peers"]["rows"]["us"])


def _of_copy(
    case: dict[str, Any], pattern: str, limit: float, copy_gb_per_s: float
) -> Iterator[tuple[float, float, bool]]:
    if case["pattern"] == pattern and case["num_blocks"] >= COPY_FROM_BLOCKS:
        ratio = float(case["peers"]["rows"]["gb_per_s"]) / copy_gb_per_s
        yield ratio, limit, ratio >= limit


def _of_pages(case: dict[str, Any]) -> Iterator[tuple[float, float, bool]]:
    # Blocks of one read: 16 reads of two blocks each are not what "from 32 blocks" means.
    if case["pattern"] == "scattered" and case["num_blocks"] >= PAGES_FROM_BLOCKS * case["num_requests"]:
        ratio = _speed_up(case, "pages")
        yield ratio, MIN_OF_PAGES, ratio >= MIN_OF_PAGES


def _one_block(case: dict[str, Any]) -> Iterator[tuple[float, float, bool]]:
    if case["num_blocks"] == 1:
        us = float(case["peers"]["rows"]["us"])
        yield us, MAX_ONE_BLOCK_US, us < MAX_ONE_BLOCK_US


def _of_vllm_each() -> Iterator[tuple[str, Judge]]:
    """Each kind of pool and of load on its own, so that none of them can be left out of a run unseen."""
    for pool in ("fresh pool", "used pool"):
        for load in ("one request", f"{MANY_REQUESTS} at once"):
            yield f"{pool}, {load}", partial(_of_vllm, pool, load)


def _of_vllm(pool: str, load: str, case: dict[str, Any]) -> Iterator[tuple[float, float, bool]]:
    is_there = (pool == "fresh pool") == (case["pattern"] == "adjacent")
    is_there &= case["num_requests"] == (1 if load == "one request" else MANY_REQUESTS)
    names = [name for name in case["peers"] if name.startswith("vllm_")]
    if is_there and names:
        ratio = min(_speed_up(case, name) for name in names)  # against the better of its layouts
        yield ratio, MIN_OF_VLLM, ratio >= MIN_OF_VLLM
