"""Split over ranks and in time, each layer gives what it gives plain (gloo, CPU); what is sent is what facts P3 say."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from msa_model.reference.tolerances import relative_l2, tolerance
from tests.unit.msa_model.split_ranks import PLAIN, RANKS, ROUNDED, STEPS, WAYS

ROOT = Path(__file__).parents[3]
EXACT = [
    (ranks, way) for ranks, ways in RANKS.items() for way in ways if WAYS[way].is_on and way not in ("SP", "SP + DBO")
]
SERVED = [(ranks, way) for ranks, ways in RANKS.items() for way in ways if way in ("SP", "SP + DBO")]
# Facts P3 at TP4; at TP2 by the same sums.
PLAIN_BYTES = {4: 36_864, 2: 24_576}
SP_BYTES = {4: 20_304, 2: 14_592}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("ranks") / "made.pt"
    environ = os.environ | {"TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.unit.msa_model.split_ranks", str(out)]
    ended = subprocess.run(
        command, cwd=ROOT, env=environ, timeout=240, check=False, capture_output=True, text=True, errors="replace"
    )
    assert out.exists(), ended.stderr[-3000:]
    results: dict[int, list[dict[str, Any]]] = torch.load(out)
    for num_ranks, ranks in results.items():
        assert len(ranks) == num_ranks, ended.stderr[-3000:]
    return results


def worst_layer(made: dict[int, list[dict[str, Any]]], num_ranks: int, way: str, wanted: str) -> float:
    """Largest relative distance of a layer of a step from what rank 0 has for it in the way that is wanted."""
    ranks = [rank["nano"] for rank in made[num_ranks]]
    return max(
        relative_l2(found, expected)
        for rank in ranks
        for step in range(len(STEPS))
        for found, expected in zip(rank[way]["layers"][step], ranks[0][wanted]["layers"][step], strict=True)
    )


@pytest.mark.parametrize(("num_ranks", "way"), EXACT)
def test_with_exact_exchange_each_layer_gives_what_it_gives_plain(
    made: dict[int, list[dict[str, Any]]], num_ranks: int, way: str
) -> None:
    assert worst_layer(made, num_ranks, way, PLAIN) <= 1e-5


@pytest.mark.parametrize(("num_ranks", "way"), SERVED)
def test_with_mxfp8_exchange_the_error_is_that_of_mxfp8(
    made: dict[int, list[dict[str, Any]]], num_ranks: int, way: str
) -> None:
    """The same layer, rounded to MXFP8 where activations cross, differs by less than a rounding on an edge moves."""
    assert worst_layer(made, num_ranks, way, ROUNDED) <= tolerance("sp_exchange", "mxfp8")
    assert worst_layer(made, num_ranks, way, PLAIN) > 10 * tolerance("sp_exchange", "mxfp8"), "nothing was rounded"


@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("is_exact", [True, False])
def test_two_micro_batches_give_each_token_what_one_gives(
    made: dict[int, list[dict[str, Any]]], num_ranks: int, is_exact: bool
) -> None:
    """A prompt that is cut attends, in its second half, to what its first half has just stored."""
    suffix = " exact" if is_exact else ""
    if f"SP{suffix}" in RANKS[num_ranks]:
        limit = 1e-5 if is_exact else tolerance("sp_exchange", "mxfp8")
        assert worst_layer(made, num_ranks, f"SP + DBO{suffix}", f"SP{suffix}") <= limit
        assert worst_layer(made, num_ranks, "DBO", PLAIN) <= 1e-6, "the sums are the same ones"


@pytest.mark.parametrize(("num_ranks", "way"), EXACT + SERVED)
def test_all_ranks_end_with_the_same_states(made: dict[int, list[dict[str, Any]]], num_ranks: int, way: str) -> None:
    first, *others = [rank["nano"][way]["whole"] for rank in made[num_ranks]]
    for other in others:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(first, other, strict=True))


@pytest.mark.parametrize("num_ranks", RANKS)
def test_each_rank_sends_the_bytes_that_facts_p3_give_a_token_and_layer(
    made: dict[int, list[dict[str, Any]]], num_ranks: int
) -> None:
    for rank in made[num_ranks]:
        plain, split = rank["sent_bytes"]["DBO"], rank["sent_bytes"]["SP + DBO"]
        assert plain == {"reduce_scatter": PLAIN_BYTES[num_ranks] / 2, "gather_exact": PLAIN_BYTES[num_ranks] / 2}
        assert split["gather"] + split["swap"] + split["reduce_scatter"] == SP_BYTES[num_ranks]


def test_the_rest_is_the_routers_scores_and_once_a_step_the_last_states(
    made: dict[int, list[dict[str, Any]]],
) -> None:
    """Of 4 experts in one of two layers, and of 6144 values in bfloat16 for both."""
    split = made[4][0]["sent_bytes"]["SP + DBO"]
    assert split["router_scores"] == 3 / 4 * 4 * 4 / 2
    assert split["gather_exact"] == 3 / 4 * 6144 * 2 / 2
