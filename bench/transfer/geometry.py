"""The bytes of one block on one rank of TP4 (facts K2), and where three layouts put them in a pool. Pure.

row (ours)            block b = [60 K/V | 60 index | 5 drafter pages], 1,822,720 B at b * ROW_BYTES
BLHNC (vLLM)          the same bytes in the same places; the difference is one descriptor for each page
LBNHC (vLLM default)  page p of all blocks side by side: page p of block b at
                      num_blocks * PAGE_OFFSETS[p] + b * PAGE_BYTES[p]
"""

from typing import Literal

import numpy as np

BLOCK_TOKENS = 128
KV_PAGE_BYTES = BLOCK_TOKENS * 144  # NVFP4 K and V of one head: 2 x 72 B a token (facts M4)
INDEX_PAGE_BYTES = BLOCK_TOKENS * 72
DRAFTER_PAGE_BYTES = BLOCK_TOKENS * 256  # FP8 K and V of one head

PAGE_BYTES: tuple[int, ...] = (KV_PAGE_BYTES,) * 60 + (INDEX_PAGE_BYTES,) * 60 + (DRAFTER_PAGE_BYTES,) * 5
PAGE_OFFSETS: tuple[int, ...] = tuple(int(offset) for offset in np.cumsum((0, *PAGE_BYTES[:-1])))
ROW_BYTES = sum(PAGE_BYTES)

Layout = Literal["block_outer", "layer_outer"]


def page_lines(layout: Layout, num_blocks: int) -> np.ndarray:
    """Each page of all blocks as one strided line of a pool that begins at byte 0.

    Returns:
        int64 [125, 3]: byte of block 0's page, bytes of the page, bytes from one block's page to the next one's.
    """
    lines = np.empty((len(PAGE_BYTES), 3), dtype=np.int64)
    lines[:, 0] = PAGE_OFFSETS
    lines[:, 1] = PAGE_BYTES
    lines[:, 2] = ROW_BYTES
    if layout == "layer_outer":
        lines[:, 0] *= num_blocks
        lines[:, 2] = PAGE_BYTES
    return lines


def page_indices(blocks: np.ndarray, num_blocks: int) -> np.ndarray:
    """Descriptor numbers of all pages of ``blocks``, page by page, as in a list of ``page_lines``.

    Args:
        blocks: int32 [n] block ids below ``num_blocks``.

    Returns:
        int32 [125 * n]; neighbours in the pool follow each other, so that NIXL can merge them.
    """
    pages = np.arange(len(PAGE_BYTES), dtype=np.int64)[:, None] * num_blocks
    return (pages + blocks.astype(np.int64)[None, :]).ravel().astype(np.int32)
