"""The whole command, on CPU with the nano model's sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.prefill.__main__ import merged
from bench.prefill.case import DBO, PLAIN, SP, SP_DBO, WAYS
from bench.prefill.must import MAX_ERRORS

ROOT = Path(__file__).parents[4]


# Both runs in one process, as vLLM takes long to import.
SCRIPT = "import sys; from bench.prefill.__main__ import main; [main(run.split()) for run in sys.argv[1:]]"
COMMON = "--device cpu --small --layers 2 --prompts 40 --rounds 3 --out"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("prefill")
    runs = [f"{COMMON} {found}/two.json --chunk 24", f"{COMMON} {found}/alone.json --compute-only --tp 4"]
    environ = os.environ | {"TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, *runs],
        cwd=ROOT,
        env=environ,
        timeout=120,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return found


def test_two_ranks_compare_and_time_every_way(folder: Path) -> None:
    whole, chunked = json.loads((folder / "two.json").read_text())["cases"]
    assert (whole["step_tokens"], chunked["step_tokens"]) == (40, 24)
    for case in (whole, chunked):
        assert all(case["median_ms"][way] > 0 and len(case["ms"][way]) == 3 for way in WAYS)
        for way in (DBO, SP, SP_DBO):
            assert all(error <= MAX_ERRORS[way] for error in case["errors"][way])
        assert min(case["from_plain"][SP]) > 5 * max(case["errors"][SP]), "nothing was rounded"
    assert (folder / "two.md").read_text().startswith("# Prefill\n\n`python -m bench.prefill --device cpu --small")


def test_a_rank_alone_computes_its_share_of_any_number_of_ranks(folder: Path) -> None:
    [case] = json.loads((folder / "alone.json").read_text())["cases"]
    assert case["tp_size"] == 4
    assert all(case["median_ms"][way] > 0 for way in WAYS)
    assert "errors" not in case


def of_rank(ms: list[float], error: float) -> dict[str, Any]:
    size = {"num_layers": 1, "num_tokens": 8, "step_tokens": 8, "tp_size": 2}
    return size | {"ms": dict.fromkeys(WAYS, ms), "errors": {SP: [error]}, "from_plain": {SP: [0.1]}}


def test_a_round_is_as_long_as_its_slowest_rank_and_an_error_as_large_as_the_largest() -> None:
    case = merged([of_rank([1.0, 5.0, 2.0], 0.1), of_rank([3.0, 1.0, 2.0], 0.2)])
    assert case["ms"][PLAIN] == [3.0, 5.0, 2.0]
    assert case["median_ms"][PLAIN] == 3.0
    assert case["errors"] == {SP: [0.2]}


@pytest.mark.parametrize("order", [1, -1])
def test_a_rank_that_computes_nan_is_not_hidden_by_the_other(order: int) -> None:
    ranks = [of_rank([1.0], float("nan")), of_rank([1.0], 0.2)][::order]
    [error] = merged(ranks)["errors"][SP]
    assert error != error
