"""Block selection is exact: forced blocks, then the best scores, ties to the lower block."""

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msa_model.reference.selection import block_scores, select_blocks, top_indices

INF = float("inf")


def choose(scores: list[float], newest: int, topk: int, local: int = 1) -> list[int]:
    chosen = select_blocks(torch.tensor(scores)[None, None], torch.tensor([newest]), topk, local)
    return chosen[0, 0].tolist()


def choose_one_by_one(scores: list[float], newest: int, topk: int, local: int) -> list[int]:
    """By repeated search for the best block that is left."""
    chosen = [block for block in range(len(scores)) if newest - local < block <= newest]
    while len(chosen) < min(topk, len(scores)):
        left = [block for block in range(len(scores)) if block not in chosen]
        best = max(scores[block] for block in left)
        chosen.append(next(block for block in left if scores[block] == best))
    return sorted(chosen)


@given(data=st.data(), num_blocks=st.integers(1, 12), topk=st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_selection_equals_a_one_by_one_search(data: st.DataObject, num_blocks: int, topk: int) -> None:
    newest = data.draw(st.integers(0, num_blocks - 1))
    local = data.draw(st.integers(1, topk))
    few_values = st.sampled_from([-2.0, -0.0, 0.0, 1.0, 1.5])  # many ties
    past = data.draw(st.lists(few_values, min_size=newest + 1, max_size=newest + 1))
    scores = past + [-INF] * (num_blocks - newest - 1)
    assert choose(scores, newest, topk, local) == choose_one_by_one(scores, newest, topk, local)


def test_equal_scores_go_to_the_lower_block() -> None:
    assert choose([1.0] * 9, newest=8, topk=4) == [0, 1, 2, 8]
    assert choose([0.0, -0.0, 0.0, -0.0, 5.0], newest=4, topk=3) == [0, 1, 4]


def test_equal_scores_go_to_the_lower_index_in_long_rows_too() -> None:
    draw = random.Random(1)
    row = [float(draw.randrange(40)) for _ in range(5000)]
    expected = sorted(range(5000), key=lambda i: (-row[i], i))[:64]
    assert top_indices(torch.tensor(row), 64).tolist() == expected


def test_the_newest_block_is_kept_however_bad_its_score() -> None:
    assert choose([9.0, 8.0, 7.0, -100.0], newest=3, topk=2) == [0, 3]


def test_blocks_behind_the_query_are_only_surplus_picks() -> None:
    assert choose([3.0, 1.0, -INF, -INF, -INF], newest=1, topk=4) == [0, 1, 2, 3]


def test_a_short_context_keeps_every_block() -> None:
    assert choose([1.0, 2.0], newest=1, topk=4) == [0, 1]


def test_a_block_scores_its_best_key_at_or_before_the_query() -> None:
    score = torch.tensor([[[1.0, 5.0, 2.0, 9.0, 7.0, float("nan"), 8.0, 8.0]]]).expand(2, 1, 8)
    best = block_scores(score, torch.tensor([2, 4]), block_size=4)
    assert best[:, 0].tolist() == [[5.0, -INF], [9.0, 7.0]]


def test_each_query_and_group_chooses_for_itself() -> None:
    score = torch.tensor([[[3.0, 0.0, 1.0, 0.0], [0.0, 3.0, 1.0, 0.0]], [[0.0, 0.0, 3.0, -INF]] * 2])
    chosen = select_blocks(score, torch.tensor([3, 2]), topk_blocks=2, local_blocks=1)
    assert chosen.tolist() == [[[0, 3], [1, 3]], [[0, 2], [0, 2]]]
