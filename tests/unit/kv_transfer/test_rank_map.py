"""Every head reaches every decode rank from one place, and every prefill rank learns when it is done."""

from itertools import product

import pytest

from kv_transfer.rank_map import RankMap, map_ranks, readers_of

SIZES = (1, 2, 4, 8)
PAIRS = list(product(SIZES, SIZES, SIZES))  # prefill TP, decode TP, KV heads of the model


def heads_held(tp_size: int, tp_rank: int, num_kv_heads: int) -> list[int]:
    """Twin of the code's rule: replicas on neighbouring ranks."""
    if tp_size >= num_kv_heads:
        return [tp_rank // (tp_size // num_kv_heads)]
    return [head for head in range(num_kv_heads) if head // (num_kv_heads // tp_size) == tp_rank]


def partners_of(ranks: RankMap) -> list[int]:
    return [*(read.source_rank for read in ranks.reads), *ranks.notify_only]


@pytest.mark.parametrize(("prefill_tp", "decode_tp", "num_kv_heads"), PAIRS)
def test_a_decode_rank_reads_each_of_its_heads_once(prefill_tp: int, decode_tp: int, num_kv_heads: int) -> None:
    for rank in range(decode_tp):
        wanted = heads_held(decode_tp, rank, num_kv_heads)
        filled: list[int] = []
        for read in map_ranks(prefill_tp, decode_tp, rank, num_kv_heads).reads:
            held = heads_held(prefill_tp, read.source_rank, num_kv_heads)
            assert (read.heads_on_source, read.heads_on_destination) == (len(held), len(wanted))
            given = held[read.source_head : read.source_head + read.num_heads]
            assert given == wanted[read.destination_head : read.destination_head + read.num_heads]
            assert len(given) == read.num_heads > 0
            filled += given
        assert filled == wanted


@pytest.mark.parametrize(("prefill_tp", "decode_tp", "num_kv_heads"), PAIRS)
def test_replicated_parts_come_from_the_last_source_alone(prefill_tp: int, decode_tp: int, num_kv_heads: int) -> None:
    for rank in range(decode_tp):
        reads = map_ranks(prefill_tp, decode_tp, rank, num_kv_heads).reads
        assert [read.takes_replicated for read in reads] == [False] * (len(reads) - 1) + [True]


@pytest.mark.parametrize(("prefill_tp", "decode_tp", "num_kv_heads"), PAIRS)
def test_every_prefill_rank_is_told_by_those_whom_it_counts(prefill_tp: int, decode_tp: int, num_kv_heads: int) -> None:
    told: dict[int, list[int]] = {rank: [] for rank in range(prefill_tp)}
    silent: list[int] = []
    for decode_rank in range(decode_tp):
        ranks = map_ranks(prefill_tp, decode_tp, decode_rank, num_kv_heads)
        assert len(set(partners_of(ranks))) == len(partners_of(ranks))
        for prefill_rank in partners_of(ranks):
            told[prefill_rank].append(decode_rank)
        silent += ranks.notify_only
    assert all(told.values())
    assert told == {rank: list(readers_of(prefill_tp, decode_tp, rank, num_kv_heads)) for rank in range(prefill_tp)}
    # One that nobody reads has exactly one decode rank to hear from.
    assert len(set(silent)) == len(silent)
    assert all(len(told[rank]) == 1 for rank in silent)


@pytest.mark.parametrize(("prefill_tp", "decode_tp", "num_kv_heads"), PAIRS)
def test_no_replica_is_read_by_more_ranks_than_its_share(prefill_tp: int, decode_tp: int, num_kv_heads: int) -> None:
    times_read = [0] * prefill_tp
    for rank in range(decode_tp):
        for read in map_ranks(prefill_tp, decode_tp, rank, num_kv_heads).reads:
            times_read[read.source_rank] += 1
    assert max(times_read) == max(1, decode_tp // prefill_tp)


@pytest.mark.parametrize("num_kv_heads", SIZES)
@pytest.mark.parametrize("tp_size", SIZES)
def test_equal_tp_maps_each_rank_to_its_own_number_and_whole_row(tp_size: int, num_kv_heads: int) -> None:
    for rank in range(tp_size):
        ranks = map_ranks(tp_size, tp_size, rank, num_kv_heads)
        assert partners_of(ranks) == [rank]
        assert ranks.reads[0].is_whole_row
        assert readers_of(tp_size, tp_size, rank, num_kv_heads) == (rank,)


def test_replicas_that_are_not_read_are_told() -> None:
    ranks = map_ranks(8, 2, 1, 4)
    assert [(read.source_rank, read.destination_head) for read in ranks.reads] == [(4, 0), (6, 1)]
    assert ranks.notify_only == (5, 7)


def test_decode_replicas_of_one_head_read_different_prefill_replicas() -> None:
    sources = [map_ranks(2, 8, rank, 1).reads[0].source_rank for rank in range(8)]
    assert sources == [0, 0, 0, 0, 1, 1, 1, 1]
    assert readers_of(2, 8, 1, 1) == (4, 5, 6, 7)


def test_a_part_of_a_row_is_no_whole_row() -> None:
    assert not any(read.is_whole_row for read in map_ranks(4, 2, 0, 4).reads)
    assert not any(read.is_whole_row for rank in (0, 1) for read in map_ranks(1, 2, rank, 4).reads)


@pytest.mark.parametrize(
    ("prefill_tp", "decode_tp", "rank", "num_kv_heads", "reason"),
    [
        (3, 4, 0, 4, "TP 3 neither divides 4 KV heads"),
        (4, 3, 0, 4, "TP 3 neither divides 4 KV heads"),
        (2, 3, 0, 6, "prefill's TP 2 and decode's TP 3 don't fit"),
        (4, 4, 4, 4, "TP 4 has no rank 4"),
        (4, 4, -1, 4, "TP 4 has no rank -1"),
    ],
)
def test_ranks_that_don_t_fit_are_refused_on_both_sides(
    prefill_tp: int, decode_tp: int, rank: int, num_kv_heads: int, reason: str
) -> None:
    for function in (map_ranks, readers_of):
        with pytest.raises(ValueError, match=reason):
            function(prefill_tp, decode_tp, rank, num_kv_heads)
