"""must-3: what the kernels have to reach on an H200, checked on a result file. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LONG_CONTEXT, LONGEST_CONTEXT = 128 * 1024, 512 * 1024
LARGE_BATCH = 8
MANY_QUERY_ROWS = 64
# Query rows -> least speed-up of index score and top-k against upstream's FP8 and bf16.
INDEX_LIMITS = {1: (1.5, 2.6), 8: (1.4, 2.2)}
ONE_REQUEST_LIMIT = 1.5
ATTENTION_LIMIT, ATTENTION_SLACK_US = 1.5, 1.0
PEERS = ("upstream_fp8", "upstream_bf16")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One demand on one case: a measured number, the limit that it is held to, and whether it keeps it."""

    demand: str
    case: str
    measured: float
    limit: float
    is_met: bool


def verdicts(result: dict[str, Any]) -> list[Verdict]:
    """Every demand on every case that it speaks of; ops without one are figures for readers.

    Raises:
        ValueError: a demand has no case that shows it, or a case lacks a peer.
    """
    found: list[Verdict] = []
    judged = [case for case in result["cases"] if case["op"] in ("index", "attention")]
    for case in judged:
        absent = {"ours", *PEERS} - set(case["us"])
        if absent:
            raise ValueError(f"{name_of(case)} lacks {', '.join(sorted(absent))}")
        found.extend(_JUDGES[case["op"]](case) if case["op"] in _JUDGES else ())
    # All of them, of an op too that the result has no case of: what was not measured keeps no promise.
    missing = set(_DEMANDS) - {verdict.demand for verdict in found}
    if missing:
        raise ValueError(f"no case shows: {'; '.join(sorted(missing))}")
    return found


def name_of(case: dict[str, Any]) -> str:
    """For readers: the op and its size."""
    context = f"{case['context'] // 1024}K"
    return f"{case['op']}, {case['shape']}, {context}, batch {case['batch']}, {case['query_rows']} rows"


_FP8, _BF16 = "index: times as fast as upstream fp8", "index: times as fast as upstream bf16"
_ONE = "index: one request of 512K, times as fast as upstream fp8"
_NEVER = ": times as fast as upstream's best, batch 8 and up"
_MANY, _FEW = "attention: times as fast as upstream's best", "attention: us behind upstream's best at one row"
_DEMANDS = (
    *(f"{demand}, {rows} rows" for demand in (_FP8, _BF16) for rows in INDEX_LIMITS),
    _ONE,
    f"index{_NEVER}",
    f"attention{_NEVER}",
    _MANY,
    _FEW,
)


def _at_least(demand: str, case: dict[str, Any], peer_us: float, limit: float) -> Verdict:
    ratio = peer_us / case["us"]["ours"]
    return Verdict(demand, name_of(case), round(ratio, 3), limit, ratio >= limit)


def _of_index(case: dict[str, Any]) -> Iterator[Verdict]:
    fp8_us, bf16_us = (case["us"][peer] for peer in PEERS)
    rows, is_long = case["query_rows"], case["context"] >= LONG_CONTEXT
    if case["batch"] >= LARGE_BATCH:
        yield _at_least(f"index{_NEVER}", case, min(fp8_us, bf16_us), 1.0)
        if is_long and case["shape"] == "rank of TP4" and rows in INDEX_LIMITS:
            of_fp8, of_bf16 = INDEX_LIMITS[rows]
            yield _at_least(f"{_FP8}, {rows} rows", case, fp8_us, of_fp8)
            yield _at_least(f"{_BF16}, {rows} rows", case, bf16_us, of_bf16)
    elif case["batch"] == 1 and case["context"] == LONGEST_CONTEXT and rows == 1:
        yield _at_least(_ONE, case, fp8_us, ONE_REQUEST_LIMIT)


def _of_attention(case: dict[str, Any]) -> Iterator[Verdict]:
    best_us = min(case["us"][peer] for peer in PEERS)
    rows = case["batch"] * case["query_rows"]
    if case["batch"] >= LARGE_BATCH:
        yield _at_least(f"attention{_NEVER}", case, best_us, 1.0)
    if rows >= MANY_QUERY_ROWS:
        yield _at_least(_MANY, case, best_us, ATTENTION_LIMIT)
    elif rows == 1:
        behind_us = case["us"]["ours"] - best_us
        yield Verdict(_FEW, name_of(case), round(behind_us, 2), ATTENTION_SLACK_US, behind_us <= ATTENTION_SLACK_US)


_JUDGES = {"index": _of_index, "attention": _of_attention}
