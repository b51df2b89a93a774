"""Which blocks cross in one measurement. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Pattern = Literal["scattered", "adjacent", "descending"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)


@dataclass(frozen=True, slots=True)
class Case:
    """``num_blocks`` blocks in all, shared out over ``num_requests`` reads that are under way at once.

    scattered: random blocks on both sides, as in a well-used pool. adjacent: one run of rising block ids on each side,
    as in a fresh pool. descending: one run of falling ids on each side, as vLLM's pool gives out again what one
    earlier request has freed (it frees from the tail).
    """

    pattern: Pattern
    num_blocks: int
    num_requests: int


@dataclass(frozen=True, slots=True)
class Request:
    """One read: block ``theirs[i]`` of the source into block ``mine[i]`` of the sink; int32 [n] each."""

    mine: np.ndarray
    theirs: np.ndarray


def cases(patterns: Iterable[Pattern], blocks: Iterable[int], requests: Iterable[int]) -> Iterator[Case]:
    """Every combination in which each request has at least one block."""
    counts = sorted(set(requests))
    for num_blocks in sorted(set(blocks)):
        for pattern in patterns:
            if num_blocks == 1 and pattern != "scattered":
                continue  # one block has no pattern
            yield from (Case(pattern, num_blocks, count) for count in counts if count <= num_blocks)


def draw(case: Case, pool_blocks: int, rng: np.random.Generator) -> list[Request]:
    """Draw the blocks of one round; no block is written twice.

    Raises:
        ValueError: the pool has fewer blocks than the case needs.
    """
    if case.num_blocks > pool_blocks:
        raise ValueError(f"a pool of {pool_blocks} blocks is too small for {case.num_blocks}")
    mine, theirs = (_run(case, pool_blocks, rng) for _ in range(2))
    parts = zip(np.array_split(mine, case.num_requests), np.array_split(theirs, case.num_requests), strict=True)
    return [Request(a, b) for a, b in parts]


def _run(case: Case, pool_blocks: int, rng: np.random.Generator) -> np.ndarray:
    if case.pattern == "scattered":
        return rng.permutation(pool_blocks)[: case.num_blocks].astype(np.int32)
    first = int(rng.integers(0, pool_blocks - case.num_blocks + 1))
    run = np.arange(first, first + case.num_blocks, dtype=np.int32)
    return run if case.pattern == "adjacent" else run[::-1].copy()
