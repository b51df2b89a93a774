"""Collectives among real ranks (gloo): what each rank gets, and that what is counted is what crosses."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from msa_model.reference import mxfp8
from tests.unit.msa_model.exchange_ranks import NUM_ROWS, RANKS, ROUTER, norm, rows_of

ROOT = Path(__file__).parents[3]
Made = dict[int, list[dict[str, Any]]]
pytestmark = pytest.mark.parametrize("size", RANKS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    out = tmp_path_factory.mktemp("ranks") / "made.pt"
    command = [sys.executable, "-m", "tests.unit.msa_model.exchange_ranks", str(out)]
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=100, check=False, capture_output=True
    )
    assert out.exists(), ended.stderr[-3000:]
    results: Made = torch.load(out)
    assert all(len(ranks) == size for size, ranks in results.items()), ended.stderr[-3000:]
    return results


def as_exchanged(x: torch.Tensor, exchange: str) -> torch.Tensor:
    return x if exchange == "exact" else mxfp8.dequantize(*mxfp8.quantize(x))


def padded(x: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat([x, torch.zeros(-len(x) % size, x.shape[1])])


@pytest.mark.parametrize("exchange", ["exact", "mxfp8"])
def test_gather_gives_every_rank_all_rows_in_the_order_of_ranks(made: Made, size: int, exchange: str) -> None:
    whole = torch.cat([rows_of(rank, 3) for rank in range(size)])
    for rank in made[size]:
        assert rank[exchange]["gather"].equal(as_exchanged(whole, exchange))
        assert rank[exchange]["gather_exact"].equal(whole)


@pytest.mark.parametrize("exchange", ["exact", "mxfp8"])
@torch.no_grad()
def test_norms_are_of_the_sums_and_scores_are_of_the_norms_before_they_are_rounded(
    made: Made, size: int, exchange: str
) -> None:
    sums = [rows_of(rank, 3) + rows_of(rank + 50, 3) for rank in range(size)]
    normed = torch.cat([norm()(rows_of(rank, 3)) for rank in range(size)])
    for number, rank in enumerate(made[size]):
        assert rank[exchange]["summed"].equal(sums[number]), "added in place"
        wanted = as_exchanged(torch.cat([norm()(one) for one in sums]), exchange)
        torch.testing.assert_close(rank[exchange]["gather_norm"], wanted, rtol=1e-6, atol=1e-6)
        gathered, scores = rank[exchange]["routed"]
        torch.testing.assert_close(gathered, as_exchanged(normed, exchange), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(scores, ROUTER.scores(normed), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("exchange", ["exact", "mxfp8"])
def test_swap_gives_each_rank_its_own_rows_with_the_values_of_all(made: Made, size: int, exchange: str) -> None:
    side_by_side = torch.cat([as_exchanged(padded(rows_of(rank), size), exchange) for rank in range(size)], dim=1)
    for number, rank in enumerate(made[size]):
        assert rank[exchange]["swap"].equal(side_by_side.chunk(size)[number])


def test_sums_are_whole_and_each_rank_keeps_its_own_rows(made: Made, size: int) -> None:
    first, *others = [rows_of(rank) for rank in range(size)]
    summed = first.clone()
    for other in others:
        summed += other  # in the order of ranks, so that every bit is the same
    for number, rank in enumerate(made[size]):
        for exchange in ("exact", "mxfp8"):
            assert rank[exchange]["reduce_scatter"].equal(padded(summed, size).chunk(size)[number])
            assert rank[exchange]["all_reduce"].equal(summed)


def test_two_collectives_that_are_under_way_at_once_do_not_mix(made: Made, size: int) -> None:
    for rank in made[size]:
        summed, gathered = rank["exact"]["two at once"]
        assert summed.equal(rank["exact"]["all_reduce"])
        assert gathered.equal(rank["exact"]["gather_exact"])


def test_rows_are_shared_out_with_padding_behind_the_last(made: Made, size: int) -> None:
    shares = torch.cat([rank["exact"]["own_rows"] for rank in made[size]])
    assert shares[:NUM_ROWS].equal(rows_of(0))
    assert not shares[NUM_ROWS:].any()


@pytest.mark.parametrize("name", ["gather", "swap", "all_reduce"])
def test_the_bytes_counted_are_those_that_cross(made: Made, size: int, name: str) -> None:
    """The kernel counts what else is on the loopback device too, so the quietest try speaks; headers are below 2%."""
    ratios = [crossed / counted for crossed, counted in made[size][0]["bytes"][name]]
    assert 1 <= min(ratios) < 1.02
