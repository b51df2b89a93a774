"""Which prompt is computed first, so that first tokens come soon on the whole, and how much of a step is for it. Pure.

The shortest first, by the tokens that are still to be computed: whoever waits behind a prompt waits as long as it
takes, so short ones in front make the mean wait shortest. A prompt that came too long ago goes before those that have
not, oldest first, so none waits for ever. Priorities come before both.
"""

from collections.abc import Sequence
from enum import IntEnum

Key = tuple[int, int, float, float]
"""Smaller comes first."""


class Turn(IntEnum):
    """Within one priority."""

    BEGUN = 0
    OLD = 1
    BY_LENGTH = 2


def order_key(
    *, priority: int, tokens_left: int, arrival_s: float, now_s: float, max_age_s: float, has_begun: bool = False
) -> Key:
    """Where a request belongs, among those that wait or among those under computation.

    Args:
        priority: a smaller one comes first, whatever else.
        tokens_left: prompt tokens that no cache has.
        arrival_s, now_s: of one clock.
        max_age_s: from this age on a request comes before shorter ones.
        has_begun: it was computed before and lost its place, or its first token is out: it comes before all others.
    """
    if has_begun:
        return (priority, Turn.BEGUN, arrival_s, 0.0)
    if now_s - arrival_s >= max_age_s:
        return (priority, Turn.OLD, arrival_s, 0.0)
    return (priority, Turn.BY_LENGTH, float(tokens_left), arrival_s)


def chunk_limit(*, running_left: Sequence[int], shorter_left: Sequence[int], budget: int) -> int | None:
    """The most tokens of one prompt in a step that leaves shorter prompts a place in it; None: no limit is needed.

    Args:
        running_left: tokens left of each prompt under computation.
        shorter_left: of each prompt that waits, can begin now, and belongs before one of those.
        budget: tokens of the step. Shorter ones get at most half of it, so that long prompts go on.
    """

    def taken(limit: int) -> int:
        shorter = sum(min(left, limit) for left in shorter_left)
        return sum(min(left, limit) for left in running_left) + min(shorter, budget // 2)

    if not shorter_left or taken(budget) <= budget:
        return None
    fits, does_not = 1, budget
    while does_not - fits > 1:
        middle = (fits + does_not) // 2
        fits, does_not = (middle, does_not) if taken(middle) <= budget else (fits, middle)
    return fits
