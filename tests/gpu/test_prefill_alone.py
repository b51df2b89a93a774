"""On one GPU, at the model's sizes, each part of a split step gets from the kernels what the whole step gets."""

import json
import subprocess
import sys
from typing import Any

import pytest

from bench.prefill.case import SP, SP_DBO, WAYS
from bench.prefill.must import MAX_ERRORS
from tests.gpu.prefill_alone import CASES
from tests.stack import REPOSITORY

pytestmark = pytest.mark.one_gpu


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("alone") / "figures.json"
    subprocess.run([sys.executable, "-m", "tests.gpu.prefill_alone", str(out)], check=True, cwd=REPOSITORY, timeout=300)
    found: list[dict[str, Any]] = json.loads(out.read_text())
    for case in found:
        print(case["errors"], case["from_plain"])
    return found


@pytest.mark.parametrize("way", MAX_ERRORS)
def test_split_steps_add_to_the_states_what_whole_ones_add(figures: list[dict[str, Any]], way: str) -> None:
    assert len(figures) == len(CASES)
    for case in figures:
        assert all(error <= MAX_ERRORS[way] for error in case["errors"][way]), case["errors"][way]


def test_halves_of_a_rounded_step_are_rounded_as_the_whole_is(figures: list[dict[str, Any]]) -> None:
    for case in figures:
        for halves, whole in zip(case["from_plain"][SP_DBO], case["from_plain"][SP], strict=True):
            assert halves == pytest.approx(whole, rel=0.2)


def test_a_trace_shows_the_kernels_of_every_way(figures: list[dict[str, Any]]) -> None:
    for case in figures:
        assert all(case["overlap"][way]["compute_us"] > 0 for way in WAYS)
