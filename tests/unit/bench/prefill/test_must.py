"""must-3 passes a good result, fails each way of missing it, and can't be passed by leaving anything out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.prefill.__main__ import main
from bench.prefill.case import DBO, PLAIN, SP, SP_DBO
from bench.prefill.must import GAINS, HIDES, NOT_SLOWER, SAME, ceiling, verdicts
from tests.unit.bench.prefill.factories import good_result


def failed(result: dict[str, Any]) -> set[str]:
    return {verdict.demand for verdict in verdicts(result) if not verdict.is_met}


def test_a_good_result_keeps_every_demand() -> None:
    found = verdicts(good_result())
    assert all(verdict.is_met for verdict in found)
    assert {verdict.demand for verdict in found} == {
        HIDES, NOT_SLOWER, GAINS, *(SAME.format(way) for way in (DBO, SP, SP_DBO)),
    }  # fmt: skip


def expose(figures: dict[str, Any]) -> None:
    figures["overlap"][SP_DBO]["exposed_us"] = 0.21 * figures["overlap"][PLAIN]["exposed_us"]


def slow_down(figures: dict[str, Any]) -> None:
    figures["median_ms"][SP_DBO] = 1.021 * figures["median_ms"][PLAIN]


def gain_little(figures: dict[str, Any]) -> None:
    # Plain exposes a tenth of its step.
    figures["median_ms"][SP_DBO] = 0.951 * figures["median_ms"][PLAIN]


def compute_something_else(figures: dict[str, Any]) -> None:
    figures["errors"][SP][-1] = 0.081


def yield_nan(figures: dict[str, Any]) -> None:
    figures["errors"][DBO][0] = float("nan")


@pytest.mark.parametrize(
    ("spoil", "num_tokens", "demands"),
    [
        (expose, 4096, {HIDES}),
        (slow_down, 4096, set()),
        (slow_down, 8192, {NOT_SLOWER}),
        (gain_little, 8192, set()),
        (gain_little, 16384, {GAINS}),
        (slow_down, 65536, {NOT_SLOWER, GAINS}),
        (compute_something_else, 4096, {SAME.format(SP)}),
        (yield_nan, 4096, {SAME.format(DBO)}),
    ],
)
def test_a_case_that_falls_short_fails_its_demand(
    spoil: Callable[[dict[str, Any]], None], num_tokens: int, demands: set[str]
) -> None:
    result = good_result()
    for figures in result["cases"]:
        if figures["num_tokens"] == num_tokens:
            spoil(figures)
    assert failed(result) == demands


def test_the_ceiling_is_what_plain_exposes_of_its_step() -> None:
    assert ceiling(good_result()["cases"][0]) == pytest.approx(0.1)


def test_one_layer_alone_may_expose_more_as_its_last_collective_has_nothing_above_it() -> None:
    result = good_result()
    for figures in result["cases"]:
        if figures["num_layers"] == 1:
            expose(figures)
    assert not failed(result)


def test_a_plain_step_without_communication_shows_that_its_kernels_were_not_known() -> None:
    result = good_result()
    result["cases"][-1]["overlap"][PLAIN]["exposed_us"] = 0.0
    with pytest.raises(ValueError, match="exposes no communication"):
        verdicts(result)


@pytest.mark.parametrize("number", range(len(good_result()["cases"])))
def test_no_case_can_be_left_out(number: int) -> None:
    result = good_result()
    del result["cases"][number]
    with pytest.raises(ValueError, match="not measured"):
        verdicts(result)


@pytest.mark.parametrize(("part", "way"), [("median_ms", PLAIN), ("overlap", SP_DBO), ("errors", SP), ("errors", DBO)])
def test_no_part_of_a_case_can_be_left_out(part: str, way: str) -> None:
    result = good_result()
    del result["cases"][3][part][way]
    with pytest.raises(ValueError, match=f"lacks {part} of"):
        verdicts(result)


@pytest.mark.parametrize("other", [{"device": "cpu"}, {"is_small": True}, {"is_alone": True}, {"tp_size": 4}])
def test_a_result_of_something_else_shows_nothing(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="something else"):
        verdicts(good_result() | other)


def test_the_command_ends_with_0_or_1_and_names_the_worst_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, result = tmp_path / "result.json", good_result()
    file.write_text(json.dumps(result))
    assert main(["--check", str(file)]) == 0
    slow_down(result["cases"][-1])
    file.write_text(json.dumps(result))
    capsys.readouterr()
    assert main(["--check", str(file)]) == 1
    assert f"FAIL: {NOT_SLOWER} at most 1.02: 11 of 12 cases; worst 1.021 (8 layers, 64K, steps of 16K)" in (
        capsys.readouterr().out
    )
    file.write_text(json.dumps(result | {"device": "cpu"}))
    assert main(["--check", str(file)]) == 1
