"""Selection is exact for given scores: the newest, then the best, ties to the lower block, rising."""

import pytest
import torch

from msa_model.ops.select import num_groups, num_warps, select_decode, select_prefill
from msa_model.reference.selection import select_blocks

TOPK, LOCAL = 16, 1


def expected_of(score: torch.Tensor, position: torch.Tensor, topk: int = TOPK, local: int = LOCAL) -> torch.Tensor:
    """The twin's choice; a row before its context's begin sees nothing."""
    newest = torch.div(position, 128, rounding_mode="floor").clamp(min=-1)
    is_later = torch.arange(score.shape[-1]) > newest[:, None, None]
    return select_blocks(score.masked_fill(is_later, float("-inf")), newest, topk, local).int()


def scores_with_ties(tokens: int, heads: int, blocks: int) -> torch.Tensor:
    score = torch.randint(-3, 4, (tokens, heads, blocks)).float()
    return torch.where((score == 0) & (torch.rand(score.shape) < 0.5), -0.0, score)


@pytest.mark.parametrize("blocks", [1, 5, 16, 17, 300, 600])
def test_ties_go_to_the_lower_block(blocks: int) -> None:
    torch.manual_seed(blocks)
    score = scores_with_ties(2, 1, blocks)
    position = torch.tensor([blocks * 128 - 1, blocks * 96]).int()
    found = select_prefill(score, position, topk_blocks=TOPK, local_blocks=LOCAL)
    assert torch.equal(found, expected_of(score, position))


@pytest.mark.parametrize(("topk", "local"), [(1, 1), (4, 4), (5, 2), (16, 3)])
def test_the_newest_blocks_are_always_kept(topk: int, local: int) -> None:
    torch.manual_seed(topk)
    score = torch.randn(4, 1, 40)
    position = torch.tensor([0, 127, 128, 40 * 128 - 1]).int()
    found = select_prefill(score, position, topk_blocks=topk, local_blocks=local)
    assert torch.equal(found, expected_of(score, position, topk, local))
    newest = position // 128
    for age in range(local):
        is_there = newest - age >= 0
        assert (found == (newest - age)[:, None, None]).any(-1).flatten()[is_there].all()


def test_rows_of_a_request_stand_at_its_end() -> None:
    torch.manual_seed(9)
    score = torch.randn(3 * 4, 2, 8)
    seq_lens = torch.tensor([4, 515, 1024], dtype=torch.int32)
    position = (seq_lens[:, None] - 4 + torch.arange(4)).flatten()
    found = select_decode(score, seq_lens, topk_blocks=4, local_blocks=1)
    assert torch.equal(found, expected_of(score, position, 4))


def test_a_padded_request_gets_the_first_blocks_and_harms_nobody() -> None:
    score = torch.full((2, 1, 20), float("nan"))
    score[1] = torch.arange(20.0)
    found = select_decode(score, torch.tensor([0, 20 * 128], dtype=torch.int32), topk_blocks=16, local_blocks=1)
    assert found.flatten(1).tolist() == [list(range(16)), list(range(4, 20))]


def test_scores_behind_the_newest_block_are_not_read() -> None:
    score = torch.full((1, 1, 600), float("inf"))
    score[..., :30] = torch.arange(30.0)
    found = select_prefill(score, torch.tensor([30 * 128 - 1]).int(), topk_blocks=16, local_blocks=1)
    assert found.flatten().tolist() == list(range(14, 30))


@pytest.mark.parametrize(
    ("score", "positions", "local"),
    [
        (torch.zeros(3, 1, 20).double(), 3, 1),
        (torch.zeros(3, 1, 20), 2, 1),
        (torch.zeros(3, 1, 20), 3, 17),
        (torch.zeros(3, 1, 1 << 15), 3, 1),
    ],
    ids=["dtype", "positions", "local", "blocks"],
)
def test_what_does_not_fit_is_refused(score: torch.Tensor, positions: int, local: int) -> None:
    with pytest.raises(ValueError, match=r"must be|can't|need"):
        select_prefill(score, torch.zeros(positions).int(), topk_blocks=16, local_blocks=local)


def test_rows_that_requests_cannot_share_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="shared evenly"):
        select_decode(torch.zeros(3, 1, 20), torch.zeros(2).int(), topk_blocks=16, local_blocks=1)


@pytest.mark.parametrize("width", [16, 256, 512, 1024, 2048, 4096, 1 << 14])
def test_groups_cut_rows_evenly_and_hold_more_than_is_chosen(width: int) -> None:
    groups = num_groups(width, TOPK)
    assert width % groups == 0
    assert groups >= TOPK
    assert num_warps(groups, 1) > num_warps(groups, 512)
