"""The compared layouts hold the same bytes, each page once."""

import numpy as np
import pytest

from bench.transfer.geometry import PAGE_BYTES, PAGE_OFFSETS, ROW_BYTES, Layout, page_indices, page_lines

NUM_BLOCKS = 7


def test_a_row_has_the_pages_and_bytes_of_facts_k2() -> None:
    assert len(PAGE_BYTES) == 125
    assert ROW_BYTES == 1_822_720
    assert PAGE_OFFSETS[-1] + PAGE_BYTES[-1] == ROW_BYTES


@pytest.mark.parametrize("layout", ["block_outer", "layer_outer"])
def test_the_pages_of_all_blocks_tile_the_pool(layout: Layout) -> None:
    spans = sorted(
        (start + block * stride, size)
        for start, size, stride in page_lines(layout, NUM_BLOCKS).tolist()
        for block in range(NUM_BLOCKS)
    )
    end = 0
    for start, size in spans:
        assert start == end
        end += size
    assert end == NUM_BLOCKS * ROW_BYTES


def test_page_indices_name_every_page_of_the_blocks_page_by_page() -> None:
    indices = page_indices(np.array([4, 2], dtype=np.int32), NUM_BLOCKS)
    assert indices.dtype == np.int32
    assert indices[:4].tolist() == [4, 2, 4 + NUM_BLOCKS, 2 + NUM_BLOCKS]
    assert len(set(indices.tolist())) == 2 * len(PAGE_BYTES)
