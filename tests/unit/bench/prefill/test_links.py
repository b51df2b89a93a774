"""The model of other machines: what is sent, how long that takes, and what of it is under compute."""

from typing import Any

import pytest

from bench.prefill.case import DBO, PLAIN, SP, SP_DBO, WAYS, Case
from bench.prefill.links import ATTAINED, MACHINES, communication_ms, predictions, sent_bytes, step_ms
from tests.unit.bench.prefill.factories import figures_of

H200, _, MI355X = MACHINES


@pytest.mark.parametrize(("tp_size", "plain", "split"), [(4, 36_864, 20_304), (2, 24_576, 14_592)])
def test_the_bytes_are_those_of_facts_p3_and_the_routers_scores(tp_size: int, plain: int, split: int) -> None:
    assert sent_bytes(PLAIN, tp_size) == sent_bytes(DBO, tp_size) == plain
    assert sent_bytes(SP, tp_size) == sent_bytes(SP_DBO, tp_size) == split + (tp_size - 1) / tp_size * 512


def test_a_mesh_has_a_link_for_each_peer_and_a_switch_one_for_all() -> None:
    assert MI355X.send_gb_per_s(4) == pytest.approx(3 * 76.8)
    assert H200.send_gb_per_s(4) == H200.send_gb_per_s(8) == 450


def test_time_is_bytes_over_the_attained_rate() -> None:
    assert communication_ms(H200, PLAIN, 4, 1000, 2) == pytest.approx(36_864 * 2000 / (450e6 * ATTAINED))


@pytest.mark.parametrize(
    ("way", "compute_ms", "sent_ms", "expected"),
    [
        (PLAIN, 10.0, 4.0, 14.0),
        (SP, 10.0, 4.0, 14.0),
        (DBO, 10.0, 4.0, 10.25),
        (SP_DBO, 3.0, 8.0, 8.5),
    ],
)
def test_two_micro_batches_hide_all_but_the_last_collective(
    way: str, compute_ms: float, sent_ms: float, expected: float
) -> None:
    assert step_ms(way, compute_ms, sent_ms, num_layers=2) == pytest.approx(expected)


def alone(tp_size: int) -> dict[str, Any]:
    case = figures_of(Case(2, 16_384, 16_384), tp_size)
    for way in WAYS:
        case["overlap"][way]["compute_us"] = 10_000.0
    return {"cases": [case]}


def test_the_machine_that_was_measured_comes_once_and_others_by_both_ratios() -> None:
    found = [(one.machine, one.scaled_by) for one in predictions(alone(4))]
    assert found == [
        ("H200", "measured"),
        ("GB300", "matrix rate"),
        ("GB300", "bandwidth"),
        ("MI355X", "matrix rate"),
        ("MI355X", "bandwidth"),
    ]


def test_the_slower_the_links_the_more_there_is_to_hide() -> None:
    speedups = {(one.machine, one.scaled_by): one.speedup(SP_DBO) for one in predictions(alone(4))}
    assert 1 < speedups["H200", "measured"] < speedups["MI355X", "bandwidth"] < speedups["MI355X", "matrix rate"]
