"""The tables that a run prints."""

from bench.transfer.report import heading, rates, times
from tests.unit.bench.factories import case, good_result


def test_the_rates_have_a_line_for_each_case_and_a_column_for_each_peer() -> None:
    result = good_result()
    lines = rates(result).splitlines()
    assert lines[0] == "| blocks | pattern | at once | copy | rows | pages | vllm_LBNHC | vllm_BLHNC |"
    assert len(lines) == 2 + len(result["cases"])
    assert lines[2].startswith("| 1 | scattered | 1 | 30.4 | 45.6 |")


def test_the_times_leave_out_peers_that_have_no_descriptors() -> None:
    result = good_result() | {"cases": [case("scattered", 8, 1, {"copy": 50, "rows": 80})]}
    result["cases"][0]["peers"]["copy"]["descriptors"] = 0
    assert times(result).splitlines()[2] == "| 8 | scattered | 1 | 40 / 80 (8) |"


def test_the_heading_says_what_was_run_and_where() -> None:
    assert heading(good_result()) == "`python -m bench.transfer --device cuda` at c0ffee\n\n2 GPUs; nixl 1.5.1"
