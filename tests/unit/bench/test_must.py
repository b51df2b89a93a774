"""must-7 passes a good result, fails each way of missing it, and can't be passed by leaving cases out."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.transfer.__main__ import main
from bench.transfer.must import verdicts
from tests.unit.bench.factories import good_result

ONE_READ = {"num_blocks": 32, "num_requests": 1}


def slow_down(result: dict[str, Any], peer: str, factor: float, **which: object) -> None:
    """Make a peer slower in the cases whose members equal ``which``."""
    for case in result["cases"]:
        if all(case[name] == value for name, value in which.items()):
            case["peers"][peer]["us"] *= factor
            case["peers"][peer]["gb_per_s"] /= factor


def failed(result: dict[str, Any]) -> set[str]:
    return {verdict.demand for verdict in verdicts(result) if not verdict.is_met}


def test_a_good_result_keeps_every_demand() -> None:
    found = verdicts(good_result())
    assert all(verdict.is_met for verdict in found)
    assert len({verdict.demand for verdict in found}) == 8


@pytest.mark.parametrize(
    ("peer", "factor", "which", "demand"),
    [
        ("rows", 1.3, {"pattern": "scattered", "num_blocks": 128}, "scattered rows / peer copy"),
        ("rows", 1.3, {"pattern": "adjacent", "num_blocks": 128}, "adjacent rows / peer copy"),
        ("rows", 2.1, {"num_blocks": 1}, "one block, us"),
        ("pages", 0.5, {"pattern": "scattered", "num_blocks": 32}, "scattered rows / 125 pages"),
        (
            "vllm_BLHNC",
            0.01,
            ONE_READ | {"pattern": "adjacent"},
            "vllm: fresh pool, one request",
        ),
        (
            "vllm_LBNHC",
            0.01,
            ONE_READ | {"pattern": "scattered"},
            "vllm: used pool, one request",
        ),
        ("vllm_LBNHC", 0.01, {"num_requests": 16, "pattern": "scattered"}, "vllm: used pool, 16 at once"),
        ("vllm_LBNHC", 0.01, {"num_requests": 16, "pattern": "adjacent"}, "vllm: fresh pool, 16 at once"),
    ],
)
def test_a_result_that_misses_one_demand_fails_it_alone(
    peer: str, factor: float, which: dict[str, object], demand: str
) -> None:
    result = good_result()
    slow_down(result, peer, factor, **which)
    assert failed(result) == {demand.replace("vllm:", "rows / vLLM's connector,")}


def test_the_mark_is_the_rate_of_the_largest_copy_not_of_one_held_up_by_its_launch() -> None:
    result = good_result()
    slow_down(result, "rows", 1.3, pattern="scattered", num_blocks=128)
    slow_down(result, "copy", 1.3, pattern="scattered", num_blocks=128)
    assert failed(result) == {"scattered rows / peer copy"}


def test_a_result_without_16_requests_at_once_shows_too_little() -> None:
    result = good_result()
    result["cases"] = [case for case in result["cases"] if case["num_requests"] == 1]
    with pytest.raises(ValueError, match="not measured"):
        verdicts(result)


@pytest.mark.parametrize("case", range(len(good_result()["cases"])))
def test_no_case_can_be_left_out(case: int) -> None:
    result = good_result()
    del result["cases"][case]
    with pytest.raises(ValueError, match="not measured"):
        verdicts(result)


def test_rows_of_another_size_show_nothing() -> None:
    with pytest.raises(ValueError, match="1822720"):
        verdicts(good_result() | {"row_bytes": 1})


def test_a_result_without_vllm_shows_too_little() -> None:
    result = good_result()
    for case in result["cases"]:
        del case["peers"]["vllm_LBNHC"], case["peers"]["vllm_BLHNC"]
    with pytest.raises(ValueError, match="vLLM's connector"):
        verdicts(result)


def test_a_result_of_the_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match="taken on CPU"):
        verdicts(good_result() | {"device": "cpu"})


def test_the_command_ends_with_0_or_1_and_names_the_worst_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, result = tmp_path / "result.json", good_result()
    file.write_text(json.dumps(result))
    assert main(["--check", str(file)]) == 0
    slow_down(result, "rows", 3.0, num_blocks=1)
    file.write_text(json.dumps(result))
    capsys.readouterr()
    assert main(["--check", str(file)]) == 1
    assert "FAIL: one block, us below 80: 0 of 1 cases; worst 120 (scattered, 1 blocks, 1 at once)" in (
        capsys.readouterr().out
    )


def test_a_result_that_shows_nothing_fails(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(good_result() | {"device": "cpu"}))
    assert main(["--check", str(file)]) == 1
