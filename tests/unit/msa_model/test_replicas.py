"""However a feed-forward layer is spread over ranks, its tokens get what one rank gives them (gloo, CPU)."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[3]
# Of each replica: ``ranks.TOKENS``.
TOKENS = (5, 3)
NUM_EXPERTS = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("ranks") / "made.pt"
    environ = os.environ | {"TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.unit.msa_model.ranks", str(out)]
    ended = subprocess.run(
        command, cwd=ROOT, env=environ, timeout=150, check=False, capture_output=True, text=True, errors="replace"
    )
    assert out.exists(), ended.stderr[-3000:]
    results: dict[str, list[dict[str, Any]]] = torch.load(out)
    for name, ranks in results.items():
        assert len(ranks) == int(name[2]) * int(name[6]), f"{name}: {ended.stderr[-3000:]}"
    return results


@pytest.mark.parametrize("name", ["TP2 DP1", "TP2 DP1 EP"])
def test_ranks_that_share_a_layer_give_what_one_gives(made: dict[str, list[dict[str, Any]]], name: str) -> None:
    [alone], ranks = made["TP1 DP1"], made[name]
    for rank in ranks:
        torch.testing.assert_close(rank["output"], alone["output"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["TP1 DP2", "TP1 DP2 EP", "TP2 DP2 EP"])
def test_each_replica_gets_what_its_own_tokens_get_on_one_rank(
    made: dict[str, list[dict[str, Any]]], name: str
) -> None:
    [alone], ranks = made["TP1 DP1"], made[name]
    rows = [part for part in alone["output"].split(TOKENS) for _ in range(len(ranks) // 2)]
    for rank, wanted in zip(ranks, rows, strict=True):
        torch.testing.assert_close(rank["output"], wanted, rtol=1e-4, atol=1e-5)


def test_expert_parallel_ranks_have_whole_experts_and_each_expert_once(made: dict[str, list[dict[str, Any]]]) -> None:
    counts = {name: [rank["num_experts"] for rank in ranks] for name, ranks in made.items()}
    for name, numbers in counts.items():
        assert sum(numbers) == NUM_EXPERTS * (1 if "EP" in name else len(numbers)), name
