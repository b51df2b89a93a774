"""The row: all pages of one KV block on one rank, side by side. Pure geometry; no torch, no vLLM, no NIXL.

    byte 0                                                        row_bytes
    |- K/V pool page (heads outermost, split over TP) -|- index pool page (replicated) -|- drafter pages ... -|

A rank's KV memory is ``num_blocks`` such rows, one after the other, so block ``b`` lies at ``base + b * row_bytes``
and crosses in one read.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """Contiguous bytes of one block in one cache layer: ``[offset, offset + page_bytes)`` of the row."""

    name: str
    offset: int
    page_bytes: int
    is_sharded: bool  # split by KV head over TP; otherwise every rank holds the same bytes


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The pages of one row in offset order, without hole or overlap."""

    pages: tuple[Page, ...]
    row_bytes: int

    @classmethod
    def from_pages(cls, pages: Iterable[Page], block_stride: int) -> "RowLayout":
        """Check that ``pages`` tile one dense row of ``block_stride`` bytes and return it.

        Raises:
            ValueError: a hole, an overlap, or a stride that is not the sum of the pages: the memory is not
                block-outermost, and a block would need more than one read.
        """
        ordered = tuple(sorted(pages, key=lambda page: page.offset))
        if not ordered:
            raise ValueError("a row needs at least one page")
        end = 0
        for page in ordered:
            if page.page_bytes <= 0:
                raise ValueError(f"page {page.name} has {page.page_bytes} bytes")
            if page.offset != end:
                raise ValueError(f"page {page.name} starts at byte {page.offset} of the row, expected {end}")
            end += page.page_bytes
        if end != block_stride:
            raise ValueError(f"pages add up to {end} bytes, but blocks are {block_stride} bytes apart")
        return cls(ordered, end)
