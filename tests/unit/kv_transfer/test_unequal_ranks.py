"""Prefill and decode of unequal TP: each decode rank gets its own heads, each source gives back when all have read."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kv_transfer.geometry import heads_of_rank
from tests.unit.kv_transfer.model import GEOMETRY
from tests.unit.kv_transfer.ranks import Rank, hold, orders, pull, taken

ENGINE = "prefill-0-life1"
NUM_BLOCKS = 6
HEAD = GEOMETRY.num_layers * GEOMETRY.kv_head_bytes
INDEX = GEOMETRY.num_index_layers * GEOMETRY.index_bytes
MODEL_HEADS = np.random.default_rng(1).integers(1, 256, (NUM_BLOCKS, GEOMETRY.num_kv_heads, HEAD), dtype=np.uint8)
MODEL_INDEX = np.random.default_rng(2).integers(1, 256, (NUM_BLOCKS, INDEX), dtype=np.uint8)

StartEngine = Callable[[str, int], list[Rank]]


def rows_of(tp_size: int, tp_rank: int) -> np.ndarray:
    """The whole model's blocks as one rank holds them, put together apart from the code under test."""
    heads = MODEL_HEADS[:, list(heads_of_rank(tp_size, tp_rank, GEOMETRY.num_kv_heads))]
    return np.concatenate([heads.reshape(NUM_BLOCKS, -1), MODEL_INDEX], axis=1)


@pytest.fixture
def start() -> Iterator[StartEngine]:
    started: list[Rank] = []

    def make(name: str, tp_size: int) -> list[Rank]:
        ranks = [
            Rank(f"unequal-{name}-{tp_size}-{rank}", num_blocks=NUM_BLOCKS, tp_size=tp_size, tp_rank=rank)
            for rank in range(tp_size)
        ]
        for rank in ranks:
            rank.mover.start()
        started.extend(ranks)
        return ranks

    yield make
    for rank in reversed(started):
        rank.mover.stop()


@pytest.mark.parametrize(
    ("prefill_tp", "decode_tp", "num_descriptors"),
    [(1, 1, [1]), (2, 1, [2]), (1, 2, [2, 1]), (2, 2, [1, 1]), (4, 1, [4])],
)
def test_every_byte_arrives_in_few_descriptors(
    start: StartEngine, prefill_tp: int, decode_tp: int, num_descriptors: list[int]
) -> None:
    prefill, decode = start("prefill", prefill_tp), start("decode", decode_tp)
    for number, rank in enumerate(prefill):
        rank.rows[:] = rows_of(prefill_tp, number)
        rank.mover.give(hold())
    theirs, mine = [5, 0, 3], [1, 4, 2]
    for rank in decode:
        rank.mover.give(orders(ENGINE, *prefill, pulls=[pull(ENGINE, mine, theirs)]))
    for number, rank in enumerate(decode):
        assert taken(rank).failed == set()
        assert np.array_equal(rank.rows[mine], rows_of(decode_tp, number)[theirs])
        assert not rank.rows[[b for b in range(NUM_BLOCKS) if b not in mine]].any()
        assert rank.stats.data["posted_descriptors"] == 3 * num_descriptors[number]
        assert rank.stats.data["reads"] == max(1, prefill_tp // decode_tp)
    for rank in prefill:
        assert taken(rank).given_back == {"p"}


def test_a_source_waits_for_the_last_of_its_decode_ranks(start: StartEngine) -> None:
    [prefill], decode = start("prefill", 1), start("decode", 2)
    prefill.mover.give(hold())
    for number, rank in enumerate(decode):
        assert not prefill.mover.take(0.1), f"before rank {number} has read"
        rank.mover.give(orders(ENGINE, prefill, pulls=[pull(ENGINE, [1], [5])]))
        taken(rank)
    assert taken(prefill).given_back == {"p"}


def test_one_lease_that_is_over_on_any_source_rank_fails_the_whole_pull(start: StartEngine) -> None:
    prefill, [decode] = start("prefill", 2), start("decode", 1)
    for rank in prefill:
        rank.mover.give(hold())
    prefill[1].fence.words[:] = 1 << 40
    decode.mover.give(orders(ENGINE, *prefill, pulls=[pull(ENGINE, [1], [5])]))
    assert taken(decode).failed == {"req"}
    assert decode.stats.data["expired_reads"] == 1


def test_a_replica_that_is_not_read_is_told_and_gives_its_blocks_back() -> None:
    one_head: dict[str, Any] = {"num_kv_heads": 1, "num_blocks": NUM_BLOCKS}
    prefill = [Rank(f"replica-prefill-{rank}", tp_rank=rank, **one_head) for rank in range(2)]
    decode = Rank("replica-decode", **one_head)
    ranks = [*prefill, decode]
    for rank in ranks:
        rank.mover.start()
    for rank in prefill:
        rank.fill()
        rank.mover.give(hold())
    decode.mover.give(orders(ENGINE, *prefill, pulls=[pull(ENGINE, [1], [5])]))
    assert taken(decode).failed == set()
    assert decode.stats.data["reads"] == 1
    for rank in prefill:
        assert taken(rank).given_back == {"p"}
    for rank in reversed(ranks):
        rank.mover.stop()
