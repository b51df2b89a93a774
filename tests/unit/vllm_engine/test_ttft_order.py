"""The order of prompts: priorities, then age, then what is left to compute; nobody starves."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from vllm_engine.ttft_order import Key, chunk_limit, order_key

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


def test_who_has_begun_comes_before_shorter_and_older_ones() -> None:
    assert key(10_000, has_begun=True) < key(1)
    assert key(10_000, 9.0, has_begun=True) < key(1, 1.0)


def test_a_priority_counts_before_all_else() -> None:
    assert key(10_000, priority=0) < key(1, 0.0, priority=1)
    assert key(10_000, priority=-1) < key(1, 0.0)


class Prompt(NamedTuple):
    priority: int
    tokens_left: int
    arrival_s: float
    has_begun: bool

    def key(self, now_s: float) -> Key:
        return order_key(**self._asdict(), now_s=now_s, max_age_s=MAX_AGE_S)


PROMPTS = st.lists(
    st.builds(Prompt, st.integers(-1, 1), st.integers(1, 1000), st.floats(0, 10), st.booleans()), max_size=20
)


@given(PROMPTS, st.floats(10, 13))
def test_only_older_ones_come_before_an_old_one_of_the_same_priority(prompts: list[Prompt], now_s: float) -> None:
    order = sorted(prompts, key=lambda prompt: prompt.key(now_s))
    assert [prompt.priority for prompt in order] == sorted(prompt.priority for prompt in prompts)
    for place, old in enumerate(order):
        if now_s - old.arrival_s >= MAX_AGE_S:
            before = [one for one in order[:place] if one.priority == old.priority and not one.has_begun]
            assert all(one.arrival_s <= old.arrival_s for one in before)


@given(PROMPTS, st.floats(10, 13), st.floats(0, 10))
def test_who_is_before_a_later_one_stays_before_it(prompts: list[Prompt], now_s: float, later_s: float) -> None:
    for prompt in prompts:
        passed = {
            other for other in prompts if other.arrival_s > prompt.arrival_s and other.key(now_s) > prompt.key(now_s)
        }
        assert all(other.key(now_s + later_s) > prompt.key(now_s + later_s) for other in passed)


TOKENS = st.lists(st.integers(1, 10_000), min_size=1, max_size=8)


def taken(left: list[int], limit: int) -> int:
    return sum(min(one, limit) for one in left)


@given(running=TOKENS, shorter=TOKENS, budget=st.integers(32, 8192))
def test_a_limit_leaves_shorter_prompts_room_and_nothing_of_a_step_unused(
    running: list[int], shorter: list[int], budget: int
) -> None:
    limit = chunk_limit(running_left=running, shorter_left=shorter, budget=budget)
    if limit is None:
        assert sum(running) + min(sum(shorter), budget // 2) <= budget
        return
    assert taken(running, limit) + min(taken(shorter, limit), budget // 2) <= budget
    assert taken(running, limit) + taken(shorter, limit) > budget - len(running) - len(shorter)
    assert taken(running, limit) >= budget // 2 - len(running), "long prompts go on"


@given(running=TOKENS, budget=st.integers(32, 8192))
def test_nothing_is_limited_where_nobody_shorter_waits(running: list[int], budget: int) -> None:
    assert chunk_limit(running_left=running, shorter_left=[], budget=budget) is None
    assert chunk_limit(running_left=[], shorter_left=running, budget=budget) is None
