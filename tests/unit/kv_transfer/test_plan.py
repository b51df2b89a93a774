"""A plan moves exactly the bytes that the decode rank's row consists of, in as few pieces as the rows allow.

A row's bytes are stood in for by numbers, one for each byte of the whole model's block, so that no two are alike and a
byte that went astray shows.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.geometry import PROFILES
from kv_transfer.layout import Page, RowLayout, layer_row, pool_row
from kv_transfer.plan import Piece, plan_reads
from kv_transfer.rank_map import map_ranks

SIZES = (1, 2, 4, 8)
PAIRS = list(product(SIZES, SIZES, SIZES))  # prefill TP, decode TP, KV heads of the model
FLASH = PROFILES["m31-flash"]

Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ModelPage:
    """One page of the whole model: bytes of a head (or of the page) and heads; 0 heads for a replicated page."""

    head_bytes: int
    num_heads: int


def held(page: ModelPage, tp_size: int, tp_rank: int) -> list[int]:
    """Heads of ``page`` on a rank, worked out apart from the code under test."""
    if page.num_heads == 0:
        return [0]
    share = page.num_heads / tp_size
    return [int(tp_rank * share)] if share < 1 else [h for h in range(page.num_heads) if int(h / share) == tp_rank]


def row_layout(pages: list[ModelPage], tp_size: int) -> RowLayout:
    placed, end = [], 0
    for number, page in enumerate(pages):
        heads = len(held(page, tp_size, 0))
        placed.append(Page(f"page{number}", end, page.head_bytes * heads, page.num_heads > 0, heads))
        end += page.head_bytes * heads
    return RowLayout.from_pages(placed, end)


def row_content(pages: list[ModelPage], tp_size: int, tp_rank: int) -> Bytes:
    """The row of a rank, cut from the whole model's pages."""
    parts: list[Bytes] = []
    next_number = 0
    for page in pages:
        count = page.head_bytes * max(1, page.num_heads)
        whole = np.arange(next_number, next_number + count).reshape(-1, page.head_bytes)
        parts.append(whole[held(page, tp_size, tp_rank)].ravel())
        next_number += count
    return np.concatenate(parts)


def transfer(pages: list[ModelPage], prefill_tp: int, decode_tp: int, decode_rank: int, num_kv_heads: int) -> list[int]:
    """Run the plans of a decode rank, check its row, and return the number of pieces from each source."""
    layout = row_layout(pages, decode_tp)
    row, times_written = np.full(layout.row_bytes, -1), np.zeros(layout.row_bytes, dtype=np.int64)
    num_pieces = []
    for read in map_ranks(prefill_tp, decode_tp, decode_rank, num_kv_heads).reads:
        source = row_content(pages, prefill_tp, read.source_rank)
        pieces = plan_reads(row_layout(pages, prefill_tp), layout, read)
        for piece in pieces:
            assert 0 <= piece.source_offset < piece.source_offset + piece.num_bytes <= len(source)
            written = slice(piece.destination_offset, piece.destination_offset + piece.num_bytes)
            row[written] = source[piece.source_offset : piece.source_offset + piece.num_bytes]
            times_written[written] += 1
        num_pieces.append(len(pieces))
    assert (times_written == 1).all()
    np.testing.assert_array_equal(row, row_content(pages, decode_tp, decode_rank))
    return num_pieces


@given(st.sampled_from(PAIRS), st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=1, max_size=6))
def test_any_pages_in_any_order_arrive_whole_and_each_byte_once(
    pair: tuple[int, int, int], shapes: list[tuple[bool, int]]
) -> None:
    prefill_tp, decode_tp, num_kv_heads = pair
    pages = [ModelPage(size, num_kv_heads if is_sharded else 0) for is_sharded, size in shapes]
    for rank in range(decode_tp):
        transfer(pages, prefill_tp, decode_tp, rank, num_kv_heads)


@pytest.mark.parametrize(("prefill_tp", "decode_tp", "num_kv_heads"), PAIRS)
@pytest.mark.parametrize("num_drafter_pages", [0, 1, 5])
def test_the_served_row_crosses_in_few_pieces(
    prefill_tp: int, decode_tp: int, num_kv_heads: int, num_drafter_pages: int
) -> None:
    # Facts K1: one read a block and rank. Findings 10: two where prefill's TP is the smaller.
    pages = [ModelPage(12, num_kv_heads), ModelPage(5, 0), *[ModelPage(7, num_kv_heads)] * num_drafter_pages]
    limit = 1 if prefill_tp >= decode_tp else 2
    for rank in range(decode_tp):
        num_pieces = transfer(pages, prefill_tp, decode_tp, rank, num_kv_heads)
        assert max(num_pieces) <= limit + num_drafter_pages
        if prefill_tp == decode_tp or min(prefill_tp, decode_tp) >= num_kv_heads:
            assert num_pieces == [1], "rows with the same heads cross whole"


@given(st.sampled_from(PAIRS), st.sampled_from(SIZES))
def test_a_drafter_with_other_heads_is_moved_right_or_refused(
    pair: tuple[int, int, int], num_drafter_heads: int
) -> None:
    prefill_tp, decode_tp, num_kv_heads = pair
    pages = [ModelPage(12, num_kv_heads), ModelPage(5, 0), ModelPage(7, num_drafter_heads)]
    for rank in range(decode_tp):
        try:
            transfer(pages, prefill_tp, decode_tp, rank, num_kv_heads)
        except ValueError as refusal:
            assert prefill_tp != decode_tp
            assert num_drafter_heads != num_kv_heads
            assert "page2 holds" in str(refusal)  # noqa: PT017 - the other outcome is no error at all


def plans(prefill_tp: int, decode_tp: int, decode_rank: int) -> list[tuple[Piece, ...]]:
    """Plans of M3.1-Flash without its drafter."""
    geometry = replace(FLASH, num_drafter_layers=0)
    source, destination = pool_row(geometry, prefill_tp), pool_row(geometry, decode_tp)
    return [plan_reads(source, destination, read) for read in map_ranks(prefill_tp, decode_tp, decode_rank, 4).reads]


KV_HEAD = 60 * 128 * 144  # facts K2: 60 layers, 128 tokens, K and V of 72 bytes (M4)
INDEX = 60 * 128 * 72


def test_the_index_crosses_with_the_last_source_s_heads() -> None:
    assert plans(2, 1, 0) == [(Piece(0, 0, 2 * KV_HEAD),), (Piece(0, 2 * KV_HEAD, 2 * KV_HEAD + INDEX),)]


def test_the_first_half_of_a_row_is_two_pieces_and_the_last_half_one() -> None:
    assert plans(1, 2, 0) == [(Piece(0, 0, 2 * KV_HEAD), Piece(4 * KV_HEAD, 2 * KV_HEAD, INDEX))]
    assert plans(1, 2, 1) == [(Piece(2 * KV_HEAD, 0, 2 * KV_HEAD + INDEX),)]


def test_equal_tp_moves_the_125_pages_of_facts_k1_as_one_row_of_1_82_mb() -> None:
    row = layer_row(FLASH, 4)
    assert len(row.pages) == 125
    for read in (None, map_ranks(4, 4, 3, 4).reads[0]):
        assert plan_reads(row, row, read) == (Piece(0, 0, 1_822_720),)


def test_heads_of_single_layers_are_cut_apart_where_no_pool_joins_them() -> None:
    pieces = plan_reads(layer_row(FLASH, 4), layer_row(FLASH, 2), map_ranks(4, 2, 0, 4).reads[0])
    assert len(pieces) == 60 + 5  # why the model pools its layers, heads outermost


KV_PAGE, INDEX_PAGE = Page("kv_pool", 0, 24, True, 2), Page("index_pool", 24, 6, False)
ONE_HEAD = [Page("kv_pool", 0, 12, True, 1), Page("index_pool", 12, 6, False)]


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ([KV_PAGE], "the row has 1 pages on prefill, 2 on decode"),
        ([KV_PAGE, Page("drafter", 24, 6, False)], "page 1 of the row is drafter on prefill, index_pool on decode"),
        ([Page("index_pool", 0, 6, False), Page("kv_pool", 6, 24, True, 2)], "page 0 of the row is index_pool"),
        ([KV_PAGE, Page("index_pool", 24, 6, True)], "index_pool is sharded on prefill, replicated on decode"),
        ([KV_PAGE, Page("index_pool", 24, 7, False)], "index_pool has 7 bytes on prefill, 6 on decode"),
        ([Page("kv_pool", 0, 26, True, 2), Page("index_pool", 26, 6, False)], "has 13 bytes a head on prefill, 12"),
        (ONE_HEAD, "kv_pool holds 1 heads on prefill, but 2 are expected"),
        ([Page("kv_pool", 0, 24, True, 0), INDEX_PAGE], "does not hold 0 equal heads"),
        ([KV_PAGE, Page("index_pool", 25, 6, False)], "starts at byte 25 of the row, expected 24"),
    ],
)
def test_rows_that_don_t_fit_are_refused_by_their_first_difference(theirs: list[Page], reason: str) -> None:
    mine = RowLayout.from_pages([KV_PAGE, INDEX_PAGE], 30)
    peer = RowLayout(tuple(theirs), sum(page.page_bytes for page in theirs))  # unchecked, as decoded from the wire
    for read in (None, map_ranks(4, 4, 0, 8).reads[0]):
        with pytest.raises(ValueError, match=reason):
            plan_reads(peer, mine, read)


def test_rows_with_other_heads_than_the_map_says_are_refused() -> None:
    one, two = RowLayout.from_pages(ONE_HEAD, 18), RowLayout.from_pages([KV_PAGE, INDEX_PAGE], 30)
    first = map_ranks(2, 1, 0, 2).reads[0]
    assert plan_reads(one, two, first) == (Piece(0, 0, 12),)
    with pytest.raises(ValueError, match="holds 2 heads on prefill, but 1 are expected"):
        plan_reads(two, two, first)
    with pytest.raises(ValueError, match="holds 1 heads on decode, but 2 are expected"):
        plan_reads(one, one, first)
