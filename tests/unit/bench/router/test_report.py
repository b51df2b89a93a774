"""The tables show medians, ratios and what a router adds to direct access."""

from bench.router.must import Verdict
from bench.router.report import heading, judged, tables
from tests.unit.bench.router.factories import good_result, rounds_of


def cells(text: str, case: str, router: str) -> list[str]:
    """The cells of one line of one case's table."""
    (part,) = [part for part in text.split("### ") if part.startswith(f"{case}:")]
    (line,) = [line for line in part.splitlines() if line.startswith(f"| {router} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_line_tells_cost_ratio_and_latency() -> None:
    line = cells(tables(good_result()), "small32", "tandem")
    assert line[1:4] == ["90.0", "90.0-90.0", "0.90"]
    assert line[4:7] == ["500", "0.50 / 1.00", "0.30 / 0.60"]
    assert line[9:] == ["60", "0", "0", "4%", "30%"]


def test_direct_access_has_no_cost_of_its_own() -> None:
    assert cells(tables(good_result()), "paced", "direct")[1:4] == ["", "", ""]


def test_a_run_without_the_peer_has_no_ratio() -> None:
    result = good_result()
    for case in result["cases"]:
        del case["routers"]["vllm-router"]
    assert cells(tables(result), "big", "tandem")[1:4] == ["90.0", "90.0-90.0", ""]


def test_a_router_that_answered_nothing_has_errors_and_no_figures() -> None:
    result = good_result()
    for one in rounds_of(result, "big"):
        one |= {"num_requests": 0, "errors": {"status 502": 3}, "ttft_ms": {}, "gap_ms": {}}
    line = cells(tables(result), "big", "tandem")
    assert line[1:10] == ["", "", "", "0", "", "", "", "", "60"]
    assert line[10] == "6"


def test_the_heading_says_under_which_circumstances() -> None:
    text = heading(good_result())
    assert "at c0ffee" in text
    assert "vllm-router 0.1.17" in text
    assert "load average 0.1 -> 1.2" in text
    assert "before and after, p99: 0.10 and 0.20 ms" in text


def test_a_verdict_is_one_line() -> None:
    found = [Verdict("errors", "big", 0, 0), Verdict("added gap, p99, ms", "stream", 1.5, 1.0)]
    assert judged(found).splitlines() == [
        "pass: big: errors: 0, at most 0",
        "FAIL: stream: added gap, p99, ms: 1.5, at most 1",
    ]
