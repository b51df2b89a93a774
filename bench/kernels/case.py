"""What is measured: an op at one size, by several contenders on the same values, and what it can't be faster than.

A file of cases (``index_cases.py`` and others named so) yields ``Case`` objects; adding an op means adding such a file.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads of one rank."""

    name: str
    kv_heads: int
    """And index heads."""
    query_heads: int


TP4_RANK = Shape("rank of TP4", 1, 16)
TP1 = Shape("TP1", 4, 64)


@dataclass(frozen=True, slots=True)
class Size:
    """A decode step: ``batch`` requests of ``context`` tokens each, with ``query_rows`` tokens (drafts included)."""

    shape: Shape
    context: int
    batch: int
    query_rows: int


@dataclass(frozen=True, slots=True)
class Floor:
    """The least that must be done: bytes read or written once, and operations."""

    read_bytes: int
    flops: int
    int_ops: int
    """32-bit integer operations of one thread each, for decoding."""


@dataclass(frozen=True)
class Case:
    """One op at one size."""

    op: str
    size: Size
    floor: Floor
    prepare: "Callable[[], dict[str, Sequence[Call]]]"
    """Makes the inputs; gives for each contender calls on different inputs, whose bytes together exceed the L2."""


CaseFile = Callable[["Bench"], Iterator[Case]]


@dataclass(frozen=True)
class Bench:
    """What all files of cases are given."""

    peer_folder: str
    """Where upstream's two files are, if no vLLM is installed; empty: none."""
    l2_bytes: int


def num_sets(bench: Bench, read_bytes: int, most: int = 8) -> int:
    """Inputs to rotate, so that what one call read is no longer in the L2 when its turn comes again."""
    return max(1, min(most, -(-4 * bench.l2_bytes // max(1, read_bytes))))
