"""The tables say what the numbers say."""

from bench.prefill.case import Case
from bench.prefill.report import errors, model, overlaps, text_of, times
from tests.unit.bench.prefill.factories import figures_of, good_result


def test_a_line_holds_the_times_of_all_ways_and_what_each_saves() -> None:
    lines = times(good_result()).splitlines()
    assert len(lines) == 2 + len(good_result()["cases"])
    assert lines[2] == "| 1 layer, 4K, one step | 4.10 | 3.81 | 3.97 | 3.77 | 5 | 7.0% | 3.0% | 8.0% |"


def test_the_ceiling_is_printed_beside_what_each_way_communicates_and_exposes() -> None:
    line = overlaps(good_result()).splitlines()[2]
    assert line.startswith("| 1 layer, 4K, one step | 10.0% | 0.41 / 0.41 / 0.00 | 0.49 / 0.08 / 0.00 |")
    assert line.endswith("| 80% | 20% | 90% |")


def test_errors_are_told_for_each_layer() -> None:
    assert errors(good_result()).splitlines()[3].count("1.0e-02") == 3 * 8


def test_only_a_rank_alone_has_a_model_of_other_machines_and_k3_stands_beside_it() -> None:
    assert "A model, not a measurement" not in text_of(good_result())
    alone = good_result() | {"is_alone": True, "cases": [figures_of(Case(2, 16_384, 16_384), 4)]}
    assert "A model, not a measurement" in text_of(alone)
    (first, second) = [line for line in model(alone).splitlines() if "1.8-2.1x" in line]
    assert first.startswith("| MI355X | 4 | 16K | matrix rate |")
    assert second.startswith("| MI355X | 4 | 16K | bandwidth |")


def test_the_heading_says_what_was_run_and_where() -> None:
    settings = good_result() | {"settings": {"NCCL_MAX_CTAS": "8"}}
    assert text_of(settings).startswith(
        "`python -m bench.prefill` at c0ffee\n\n2 GPUs; torch 2.11; NCCL_MAX_CTAS=8\n\n## Medians"
    )
