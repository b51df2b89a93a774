"""must-2 passes a good result, fails each way of missing it, and can't be passed by leaving something out."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.router.__main__ import main
from bench.router.must import verdicts
from tests.unit.bench.router.factories import good_result, rounds_of


def failed(result: dict[str, Any]) -> set[tuple[str, str]]:
    return {(verdict.case, verdict.demand) for verdict in verdicts(result) if not verdict.is_met}


def test_a_good_result_keeps_every_demand() -> None:
    assert failed(good_result()) == set()


@pytest.mark.parametrize(
    ("case", "factor", "unit"),
    [
        ("small32", 1.2, "request"),
        ("small128", 1.2, "request"),
        ("big", 1.2, "request"),
        ("stream", 1.9, "token"),
    ],
)
def test_more_cpu_time_than_the_peer_fails_that_case_alone(case: str, factor: float, unit: str) -> None:
    result = good_result()
    for one in rounds_of(result, case):
        one["cpu_s"]["router"] *= factor
    assert failed(result) == {(case, f"CPU a {unit} / vllm-router's")}


def test_a_stream_may_cost_more_than_the_peers_but_not_so_a_request() -> None:
    result = good_result()
    for case in ("stream", "small32"):
        for one in rounds_of(result, case):
            one["cpu_s"]["router"] *= 1.5
    assert {case for case, _ in failed(result)} == {"small32"}


def test_paired_rounds_are_compared_so_that_a_busy_moment_of_the_machine_hits_both() -> None:
    result = good_result()
    for router in ("tandem", "vllm-router"):
        rounds_of(result, "small32", router)[0]["cpu_s"]["router"] *= 5
    assert failed(result) == set()


@pytest.mark.parametrize(("point", "ms"), [("p50", 0.9), ("p99", 2.5)])
def test_an_added_first_token_time_fails(point: str, ms: float) -> None:
    result = good_result()
    direct = rounds_of(result, "paced", "direct")
    for one, other in zip(rounds_of(result, "paced"), direct, strict=True):
        one["ttft_ms"][point] = other["ttft_ms"][point] + ms
    assert failed(result) == {("paced", f"added ttft, {point}, ms")}


def test_a_machine_that_stops_its_programs_fails() -> None:
    result = good_result()
    result["pauses_ms"][1]["p99"] = 3.2
    assert failed(result) == {("paced", "pauses of the machine itself, p99, ms")}


def test_a_result_that_does_not_say_how_the_machine_was_is_not_judged() -> None:
    result = good_result()
    del result["pauses_ms"]
    with pytest.raises(ValueError, match="pauses of the machine"):
        verdicts(result)


def test_an_added_gap_fails() -> None:
    result = good_result()
    for one in rounds_of(result, "stream"):
        one["gap_ms"] = {"p50": 10.2, "p99": 13.0, "max": 20.0}
    assert failed(result) == {("stream", "added gap, p50, ms"), ("stream", "added gap, p99, ms")}


def test_memory_of_one_process_in_one_round_fails() -> None:
    result = good_result()
    rounds_of(result, "big")[1]["rss_mb"] = [40.0, 101.0]
    assert failed(result) == {("big", "RSS of a process, MB")}


@pytest.mark.parametrize("router", ["tandem", "vllm-router"])
def test_mocks_that_were_the_limit_fail(router: str) -> None:
    result = good_result()
    rounds_of(result, "small128", router)[0]["cpu_s"]["mocks"] = 1.75
    assert failed(result) == {("small128", "mocks and load, part of their core")}


def test_one_error_fails() -> None:
    result = good_result()
    rounds_of(result, "small128")[0]["errors"] = {"status 502": 1}
    assert failed(result) == {("small128", "errors")}


@pytest.mark.parametrize(
    "fault", ["no_handoff", "wrong_handoff", "other_prompt", "dirty_prefill", "bad_request", "live"]
)
def test_one_silent_fault_fails(fault: str) -> None:
    result = good_result()
    rounds_of(result, "small32")[1]["engines"][fault] = 1
    assert failed(result) == {("small32", "silent recomputes and lost leases")}


@pytest.mark.parametrize("case", ["small32", "small128", "stream", "big", "paced"])
def test_a_result_without_a_case_shows_too_little(case: str) -> None:
    result = good_result()
    result["cases"] = [one for one in result["cases"] if one["name"] != case]
    with pytest.raises(ValueError, match=case):
        verdicts(result)


@pytest.mark.parametrize("router", ["tandem", "vllm-router", "direct"])
def test_a_result_without_a_router_shows_too_little(router: str) -> None:
    result = good_result()
    for case in result["cases"]:
        del case["routers"][router]
    with pytest.raises(ValueError, match=router):
        verdicts(result)


@pytest.mark.parametrize("router", ["tandem", "vllm-router"])
def test_a_router_that_answered_nothing_shows_too_little(router: str) -> None:
    result = good_result()
    rounds_of(result, "small32", router)[0]["num_requests"] = 0
    with pytest.raises(ValueError, match="without an answer"):
        verdicts(result)


def test_the_command_judges_a_file_and_ends_with_0_or_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, result = tmp_path / "result.json", good_result()
    file.write_text(json.dumps(result))
    assert main(["--check", str(file)]) == 0
    rounds_of(result, "big")[0]["errors"] = {"no answer": 2}
    file.write_text(json.dumps(result))
    capsys.readouterr()
    assert main(["--check", str(file)]) == 1
    assert "FAIL: big: errors: 2, at most 0" in capsys.readouterr().out


def test_a_file_that_shows_nothing_fails(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(good_result() | {"cases": []}))
    assert main(["--check", str(file)]) == 1
