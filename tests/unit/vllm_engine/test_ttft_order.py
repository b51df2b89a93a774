"""The order of waiting prompts: priorities, then age, then what is left to compute; nobody starves."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_engine.ttft_order import Key, order_key, room_for_shorter

MAX_AGE_S = 2.0


def key(tokens_left: int, arrival_s: float = 10.0, *, now_s: float = 10.0, priority: int = 0, **more: bool) -> Key:
    return order_key(
        priority=priority, tokens_left=tokens_left, arrival_s=arrival_s, now_s=now_s, max_age_s=MAX_AGE_S, **more
    )


def test_fewest_tokens_left_come_first_and_equals_in_the_order_of_arrival() -> None:
    assert key(10) < key(11)
    assert key(10, 9.0) < key(10, 9.5)


def test_who_has_waited_too_long_comes_first_oldest_first() -> None:
    assert key(10_000, 8.0) < key(1)
    assert key(10_000, 7.0) < key(1, 8.0)
    assert key(10_000, 8.1) > key(1), "not yet"


def test_who_has_lost_its_place_comes_before_shorter_ones() -> None:
    assert key(10_000, has_run=True) < key(1)


def test_a_priority_counts_before_all_else() -> None:
    assert key(10_000, priority=0) < key(1, 0.0, priority=1)
    assert key(10_000, priority=-1) < key(1, 0.0)


@given(st.lists(st.integers(1, 10_000), max_size=20), st.integers(2, 8192))
def test_at_most_half_a_step_is_left_to_shorter_prompts(waiting: list[int], budget: int) -> None:
    room = room_for_shorter([5_000], waiting, budget)
    assert room <= budget // 2
    assert room <= sum(left for left in waiting if left < 5_000)
    assert room_for_shorter([], waiting, budget) == 0, "nobody is in the way"


def simulate(max_age_s: float, *, num_short: int, seed: int) -> dict[str, list[float]]:
    """Waits of a worker that computes one prompt at a time, long ones among many short ones."""
    draw = random.Random(seed)
    arrivals = [("long", draw.uniform(0, 5), 1.0) for _ in range(3)]
    arrivals += [("short", draw.uniform(0, 10), 0.1) for _ in range(num_short)]
    waiting, waits, now_s = sorted(arrivals, key=lambda one: one[1]), dict[str, list[float]](long=[], short=[]), 0.0
    while waiting:
        here = [one for one in waiting if one[1] <= now_s]
        if not here:
            now_s = waiting[0][1]
            continue
        first = min(
            here,
            key=lambda one: order_key(
                priority=0, tokens_left=int(one[2] * 1e4), arrival_s=one[1], now_s=now_s, max_age_s=max_age_s
            ),
        )
        waiting.remove(first)
        waits[first[0]].append(now_s - first[1])
        now_s += first[2]
    return waits


@pytest.mark.parametrize("seed", range(5))
def test_short_prompts_wait_less_and_long_ones_not_for_ever(seed: int) -> None:
    in_order, by_length = simulate(0.0, num_short=95, seed=seed), simulate(MAX_AGE_S, num_short=95, seed=seed)
    never_old = simulate(1e9, num_short=95, seed=seed)
    assert sum(by_length["short"]) < sum(in_order["short"])
    assert max(by_length["long"]) <= max(never_old["long"])
