"""The row's geometry: pages tile it without hole or overlap."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.layout import Page, RowLayout
from kv_transfer.plan import Piece, plan_reads

KV = Page("kv_pool", 0, 294_912, True)
INDEX = Page("index_pool", 294_912, 36_864, False)


def test_a_row_is_the_sum_of_its_pages() -> None:
    layout = RowLayout.from_pages([INDEX, KV], 331_776)
    assert layout.row_bytes == 331_776
    assert [page.name for page in layout.pages] == ["kv_pool", "index_pool"]


@pytest.mark.parametrize(
    ("pages", "stride", "reason"),
    [
        ([], 0, "at least one page"),
        ([INDEX], 331_776, "starts at byte 294912 of the row, expected 0"),
        ([KV, Page("index_pool", 294_911, 36_864, False)], 331_775, "expected 294912"),
        ([KV, INDEX], 331_777, "add up to 331776 bytes, but blocks are 331777 bytes apart"),
        ([Page("empty", 0, 0, True)], 0, "has 0 bytes"),
    ],
)
def test_what_is_no_dense_row_is_refused(pages: list[Page], stride: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        RowLayout.from_pages(pages, stride)


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=40), st.randoms())
def test_any_tiling_is_accepted_in_any_order_and_no_shifted_one(sizes: list[int], random: Random) -> None:
    pages, end = [], 0
    for i, size in enumerate(sizes):
        pages.append(Page(f"layer{i}", end, size, i % 2 == 0))
        end += size
    shuffled = random.sample(pages, len(pages))
    assert RowLayout.from_pages(shuffled, end).pages == tuple(pages)
    shifted = [Page(p.name, p.offset + 1, p.page_bytes, p.is_sharded) for p in pages]
    with pytest.raises(ValueError, match="expected 0"):
        RowLayout.from_pages(shifted, end + 1)


def test_equal_rows_cross_as_one_piece() -> None:
    layout = RowLayout.from_pages([KV, INDEX], 331_776)
    assert plan_reads(layout, layout) == (Piece(0, 0, 331_776),)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ([KV, Page("index_pool", 294_912, 36_864, True)], "differs"),
        ([Page("kv_pool", 0, 294_911, True), Page("index_pool", 294_911, 36_864, False)], "differs"),
        ([KV], "has 2 pages, decode's 1"),
    ],
)
def test_rows_of_other_pages_are_refused(other: list[Page], reason: str) -> None:
    mine = RowLayout.from_pages(other, sum(page.page_bytes for page in other))
    with pytest.raises(ValueError, match=reason):
        plan_reads(RowLayout.from_pages([KV, INDEX], 331_776), mine)
