"""Which waiting prompt is computed first, so that first tokens come soon on the whole. Pure.

The shortest first, by the tokens that are still to be computed: whoever waits behind a prompt waits as long as it
takes, so short ones in front make the mean wait shortest. A prompt that has waited too long goes before those that have
not, oldest first, so none waits for ever. Priorities come before both.
"""

from collections.abc import Sequence

Key = tuple[int, int, float, float]
"""Smaller comes first."""


def order_key(
    *, priority: int, tokens_left: int, arrival_s: float, now_s: float, max_age_s: float, has_run: bool = False
) -> Key:
    """Where a waiting request belongs.

    Args:
        priority: a smaller one comes first, whatever else.
        tokens_left: prompt tokens that no cache has.
        arrival_s, now_s: of one clock.
        max_age_s: from this wait on a request comes before shorter ones.
        has_run: it was computed before and lost its place; it comes before shorter ones too.
    """
    if has_run or now_s - arrival_s >= max_age_s:
        return (priority, 0, arrival_s, 0.0)
    return (priority, 1, float(tokens_left), arrival_s)


def room_for_shorter(running_left: Sequence[int], waiting_left: Sequence[int], budget: int) -> int:
    """Tokens of a step to leave to prompts that wait and are shorter than the longest that is being computed.

    Args:
        running_left: tokens left of each prompt under computation.
        waiting_left: of each that waits.
        budget: of the step; at most half of it is left, so that long prompts go on.
    """
    longest = max(running_left, default=0)
    return min(sum(left for left in waiting_left if left < longest), budget // 2)
