"""The tables say what the numbers say."""

from typing import Any

from bench.kernels.must import verdicts
from bench.kernels.report import floors_us, judged, table
from tests.unit.bench.kernels.test_must import case, good_result

RESULT: dict[str, Any] = {"read_gb_per_s": 4000.0, "ceilings": {"tflops": 1000.0, "int_tops": 10.0, "text": ""}}


def one_case() -> dict[str, Any]:
    made = case("index", "TP1", 512, 8, 1)
    made["floor"] = {"read_bytes": 20_000_000, "flops": 3_000_000_000, "int_ops": 40_000_000}
    return made


def test_floors_are_work_over_ceiling() -> None:
    assert floors_us(one_case(), RESULT) == {"bytes": 5.0, "flops": 3.0, "int": 4.0}


def test_a_line_holds_times_ratios_rate_and_floors() -> None:
    line = table(RESULT | {"cases": [one_case()]}, "index").splitlines()[-1]
    assert line == "| TP1 | 512K | 8 | 1 | 10.0 | 16.0 | 30.0 | 1.60 | 3.00 | 2000 | 50% | 5.0 / 3.0 / 4.0 |"


def test_the_worst_case_of_a_demand_is_named() -> None:
    lines = judged(verdicts(good_result())).splitlines()
    assert all(line.startswith("pass:") for line in lines)
    (behind,) = [line for line in lines if "us behind" in line]
    assert "at most 1" in behind
    assert "worst 0.9 (attention, TP1, 128K, batch 1, 1 rows)" in behind
