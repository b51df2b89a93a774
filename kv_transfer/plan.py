"""Which bytes of a source row go where in a destination row. Pure; no torch, no vLLM, no NIXL.

Sharded pages are cut by KV head, replicated ones taken whole and from one source only. Pieces that follow each other
in both rows become one. Prefill TP2 to decode TP1, 4 heads::

    source, rank 0        | K/V heads 0 1 | index |           piece 1: heads 0 1
    source, rank 1        | K/V heads 2 3 | index |           piece 2: heads 2 3 and the index
    destination           | K/V heads 0 1 | 2 3 | index |
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kv_transfer.layout import Page, RowLayout
from kv_transfer.rank_map import SourceRead


@dataclass(frozen=True, slots=True)
class Piece:
    """One contiguous copy inside a row: source offset, destination offset, length in bytes."""

    source_offset: int
    destination_offset: int
    num_bytes: int


def plan_reads(source: RowLayout, destination: RowLayout, source_read: SourceRead | None = None) -> tuple[Piece, ...]:
    """Plan the reads of one block from one source rank.

    The plans for all ``reads`` of a ``RankMap`` together write each byte of the destination row once.

    Args:
        source: the row of prefill rank ``source_read.source_rank``; checked here, as it comes from a peer.
        destination: the row of the decode rank that reads.
        source_read: which heads come from there, and whether the replicated parts do; None for equal TP, where the
            row crosses whole.

    Returns:
        Pieces in offset order, as few as possible. With a K/V pool page and the index page behind it: one where
        prefill's TP is at least decode's, else at most two; a drafter's pages add at most one each.

    Raises:
        ValueError: the rows hold different pages, or other numbers of heads than ``source_read`` says; names the
            first difference. Or the source's pages are no dense row.
    """
    source = RowLayout.from_pages(source.pages, source.row_bytes)
    for number, (theirs, mine) in enumerate(zip(source.pages, destination.pages, strict=False)):
        _check_pair(number, theirs, mine)
    if len(source.pages) != len(destination.pages):
        raise ValueError(f"the row has {len(source.pages)} pages on prefill, {len(destination.pages)} on decode")
    if source_read is None or source_read.is_whole_row:
        for theirs, mine in zip(source.pages, destination.pages, strict=True):
            # Not compared with source_read: a drafter's pages may hold another number of heads than the K/V pool.
            _check_heads("prefill", theirs, mine.num_heads)
        return (Piece(0, 0, destination.row_bytes),)
    return _merged(_cut(source, destination, source_read))


def _check_pair(number: int, theirs: Page, mine: Page) -> None:
    if theirs.name != mine.name:
        raise ValueError(f"page {number} of the row is {theirs.name} on prefill, {mine.name} on decode")
    if theirs.is_sharded != mine.is_sharded:
        kinds = ["sharded" if page.is_sharded else "replicated" for page in (theirs, mine)]
        raise ValueError(f"page {mine.name} is {kinds[0]} on prefill, {kinds[1]} on decode")
    if theirs.head_bytes != mine.head_bytes:
        unit = "bytes a head" if mine.is_sharded else "bytes"
        raise ValueError(f"page {mine.name} has {theirs.head_bytes} {unit} on prefill, {mine.head_bytes} on decode")


def _check_heads(side: str, page: Page, num_heads: int) -> None:
    if page.num_heads != num_heads:
        raise ValueError(f"page {page.name} holds {page.num_heads} heads on {side}, but {num_heads} are expected")


def _cut(source: RowLayout, destination: RowLayout, read: SourceRead) -> Iterable[Piece]:
    """One piece a page, in the order of the rows."""
    for theirs, mine in zip(source.pages, destination.pages, strict=True):
        if mine.is_sharded:
            _check_heads("prefill", theirs, read.heads_on_source)
            _check_heads("decode", mine, read.heads_on_destination)
            yield Piece(
                theirs.offset + read.source_head * theirs.head_bytes,
                mine.offset + read.destination_head * mine.head_bytes,
                read.num_heads * mine.head_bytes,
            )
        elif read.takes_replicated:
            yield Piece(theirs.offset, mine.offset, mine.page_bytes)


def _merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Join each piece to the one before it where it continues that one in both rows."""
    merged: list[Piece] = []
    for piece in pieces:
        if merged:
            last = merged[-1]
            ends = (last.source_offset + last.num_bytes, last.destination_offset + last.num_bytes)
            if ends == (piece.source_offset, piece.destination_offset):
                merged[-1] = Piece(last.source_offset, last.destination_offset, last.num_bytes + piece.num_bytes)
                continue
        merged.append(piece)
    return tuple(merged)
