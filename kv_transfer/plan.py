"""Which bytes of a source row go where in a destination row. Pure; no torch, no vLLM, no NIXL."""

from dataclasses import dataclass

from kv_transfer.layout import RowLayout


@dataclass(frozen=True, slots=True)
class Piece:
    """One contiguous copy inside a row: source offset, destination offset, length in bytes."""

    source_offset: int
    destination_offset: int
    num_bytes: int


def plan_reads(source: RowLayout, destination: RowLayout) -> tuple[Piece, ...]:
    """Plan the reads of one block between ranks of equal TP: the whole row, as one piece.

    Raises:
        ValueError: the rows hold different pages; names the first difference.
    """
    for theirs, mine in zip(source.pages, destination.pages, strict=False):
        if theirs != mine:
            raise ValueError(f"prefill's page {theirs} differs from decode's {mine}")
    if len(source.pages) != len(destination.pages):
        raise ValueError(f"prefill's row has {len(source.pages)} pages, decode's {len(destination.pages)}")
    return (Piece(0, 0, destination.row_bytes),)
