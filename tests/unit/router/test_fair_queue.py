"""Who waits is taken by priority, then fairly between keys, then by arrival, and nobody is lost or taken twice."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fair_queue import MAX_IDLE_FLOWS, FairQueue, Waiting

MAX_TOKENS = 50


def waiting(num_tokens: int = 1, *, key: str = "", priority: int = 0) -> Waiting:
    return Waiting(num_tokens, priority, key, on_turn=lambda: None)


def pushed(queue: FairQueue, *entries: Waiting) -> list[Waiting]:
    for entry in entries:
        queue.push(entry)
    return list(entries)


def drained(queue: FairQueue) -> list[Waiting]:
    return [queue.pop() for _ in range(len(queue))]


def test_one_key_is_served_in_the_order_of_arrival_whatever_the_size() -> None:
    queue = FairQueue()
    entries = pushed(queue, *(waiting(size) for size in (9, 1, 500, 2)))
    assert drained(queue) == entries


def test_a_lower_priority_number_goes_first_across_keys() -> None:
    queue = FairQueue()
    late, first, middle = pushed(
        queue, waiting(key="a", priority=5), waiting(key="b", priority=-3), waiting(key="a", priority=0)
    )
    assert drained(queue) == [first, middle, late]


def test_two_keys_take_turns_though_one_came_with_everything_first() -> None:
    queue = FairQueue()
    hog = pushed(queue, *(waiting(10, key="hog") for _ in range(4)))
    modest = pushed(queue, *(waiting(10, key="modest") for _ in range(2)))
    assert drained(queue) == [hog[0], modest[0], hog[1], modest[1], hog[2], hog[3]]


def test_turns_are_counted_in_tokens_not_in_requests() -> None:
    queue = FairQueue()
    pushed(queue, *(waiting(30, key="large") for _ in range(3)))
    pushed(queue, *(waiting(10, key="small") for _ in range(9)))
    assert Counter(entry.key for entry in drained(queue)[:8]) == {"large": 2, "small": 6}


def test_a_key_that_comes_anew_goes_level_with_the_others_and_not_before_them() -> None:
    queue = FairQueue()
    pushed(queue, *(waiting(10, key="old") for _ in range(20)))
    for _ in range(10):
        queue.pop()
    pushed(queue, *(waiting(10, key="new") for _ in range(10)))
    assert Counter(entry.key for entry in drained(queue)[:10]) == {"old": 5, "new": 5}


def test_what_a_key_was_given_with_one_priority_counts_in_the_others() -> None:
    queue = FairQueue()
    pushed(queue, *(waiting(10, key="a", priority=-1) for _ in range(3)))
    later_a = pushed(queue, *(waiting(10, key="a") for _ in range(2)))
    later_b = pushed(queue, *(waiting(10, key="b") for _ in range(2)))
    assert drained(queue)[3:] == [*later_b, *later_a]


def test_who_leaves_is_not_charged_and_not_taken() -> None:
    queue = FairQueue()
    left = pushed(queue, *(waiting(1000, key="a") for _ in range(5)))
    stayed, other = pushed(queue, waiting(10, key="a"), waiting(10, key="b"))
    for entry in left:
        queue.remove(entry)
    assert queue.num_tokens == 20
    assert drained(queue) == [stayed, other]


def test_a_key_whose_line_was_left_by_all_has_no_old_claim_when_it_is_back() -> None:
    queue = FairQueue()
    [gone] = pushed(queue, waiting(10, key="back", priority=1))
    steady = pushed(queue, *(waiting(10, key="steady", priority=1) for _ in range(2)))
    pushed(queue, *(waiting(10, key="urgent") for _ in range(9)))
    queue.remove(gone)
    for _ in range(9):
        queue.pop()
    back = pushed(queue, waiting(10, key="back", priority=1))
    assert drained(queue) == [*steady, *back]


def test_when_nobody_waits_the_past_is_forgotten() -> None:
    queue = FairQueue()
    pushed(queue, *(waiting(1000, key="hog") for _ in range(5)))
    drained(queue)
    first, second = pushed(queue, waiting(1, key="hog"), waiting(1, key="new"))
    assert drained(queue) == [first, second]


def test_lines_that_all_have_left_do_not_pile_up() -> None:
    queue = FairQueue()
    pushed(queue, waiting(priority=-(1 << 40)))
    for priority in range(10_000):
        [entry] = pushed(queue, waiting(priority=priority, key=str(priority)))
        queue.remove(entry)
    assert len(queue._heap) <= MAX_IDLE_FLOWS + 4
    assert len(queue._flows) == len(queue._heap)


def test_an_empty_queue_has_no_first() -> None:
    queue = FairQueue()
    assert queue.first() is None
    [entry] = pushed(queue, waiting())
    queue.remove(entry)
    assert (queue.first(), len(queue), queue.num_tokens) == (None, 0, 0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from("abc"), st.integers(-1, 1), st.integers(1, MAX_TOKENS)),
        st.tuples(st.just("pop"), st.integers(0, 100)),
        st.tuples(st.just("remove"), st.integers(0, 100)),
    ),
    max_size=60,
)


@given(STEPS)
def test_it_holds_exactly_those_that_came_and_did_not_go(steps: list[tuple[object, ...]]) -> None:
    queue, there = FairQueue(), list[Waiting]()
    for step in steps:
        match step:
            case ("push", str(key), int(priority), int(tokens)):
                there += pushed(queue, waiting(tokens, key=key, priority=priority))
            case ("pop", _) if there:
                first = queue.first()
                taken = queue.pop()
                assert taken is first
                assert taken.priority == min(entry.priority for entry in there)
                same_line = [e for e in there if (e.key, e.priority) == (taken.key, taken.priority)]
                assert taken is same_line[0]
                there.remove(taken)
            case ("remove", int(index)) if there:
                entry = there.pop(index % len(there))
                queue.remove(entry)
                assert not entry.is_queued
        assert len(queue) == len(there)
        assert queue.num_tokens == sum(entry.num_tokens for entry in there)
        assert all(entry.is_queued for entry in there)
    assert sorted(map(id, drained(queue))) == sorted(map(id, there))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, MAX_TOKENS)), min_size=2, max_size=80),
    st.lists(st.integers(0, 100), max_size=20),
)
def test_two_keys_that_always_wait_get_the_same_give_or_take_one_request_each(
    requests: list[tuple[str, int]], leaving: list[int]
) -> None:
    queue = FairQueue()
    entries = pushed(queue, *(waiting(tokens, key=key) for key, tokens in requests))
    for index in leaving:
        if entries:
            queue.remove(entries.pop(index % len(entries)))
    left = Counter(entry.key for entry in entries)
    given_tokens: Counter[str] = Counter()
    while left["a"] and left["b"]:
        taken = queue.pop()
        left[taken.key] -= 1
        given_tokens[taken.key] += taken.num_tokens
        assert abs(given_tokens["a"] - given_tokens["b"]) <= 2 * MAX_TOKENS


@pytest.mark.parametrize("num_keys", [2, 7])
def test_every_key_of_many_gets_its_share(num_keys: int) -> None:
    queue = FairQueue()
    for _ in range(30):
        pushed(queue, *(waiting(3 + key, key=str(key)) for key in range(num_keys)))
    shares: Counter[str] = Counter()
    for _ in range(15 * num_keys):
        taken = queue.pop()
        shares[taken.key] += taken.num_tokens
    assert max(shares.values()) - min(shares.values()) <= 2 * (3 + num_keys)
