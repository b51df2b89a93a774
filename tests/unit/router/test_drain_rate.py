"""What a client is told to wait is what the queue's recent pace says, between a second and a minute."""

import pytest

from router.drain_rate import MAX_RETRY_AFTER_S, MIN_RETRY_AFTER_S, WINDOW_S, DrainRate
from tests.unit.router.factories import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rate(clock: ManualClock) -> DrainRate:
    return DrainRate(clock)


def drain(rate: DrainRate, clock: ManualClock, *, tokens_per_s: int, seconds: int) -> None:
    for _ in range(seconds):
        clock.now_s += 1.0
        rate.note(tokens_per_s)


@pytest.mark.parametrize("seconds", [5, 15, 100])
def test_a_steady_pace_is_told_as_it_is(rate: DrainRate, clock: ManualClock, seconds: int) -> None:
    drain(rate, clock, tokens_per_s=50, seconds=seconds)
    assert rate.retry_after_s(1000) == pytest.approx(20, abs=2)


def test_a_new_pace_is_known_after_two_windows(rate: DrainRate, clock: ManualClock) -> None:
    drain(rate, clock, tokens_per_s=1000, seconds=100)
    drain(rate, clock, tokens_per_s=50, seconds=int(2 * WINDOW_S))
    assert rate.retry_after_s(1000) == pytest.approx(20, abs=2)


def test_a_queue_that_stands_still_is_told_the_longest_wait(rate: DrainRate, clock: ManualClock) -> None:
    drain(rate, clock, tokens_per_s=1000, seconds=100)
    clock.now_s += 5 * WINDOW_S
    assert rate.retry_after_s(1) == MAX_RETRY_AFTER_S


def test_a_queue_that_has_just_formed_is_told_the_shortest(rate: DrainRate, clock: ManualClock) -> None:
    drain(rate, clock, tokens_per_s=1, seconds=30)
    rate.restart()
    assert rate.retry_after_s(1000) == MIN_RETRY_AFTER_S


@pytest.mark.parametrize(("num_tokens", "told_s"), [(0, MIN_RETRY_AFTER_S), (10**9, MAX_RETRY_AFTER_S)])
def test_the_answer_is_bounded(rate: DrainRate, clock: ManualClock, num_tokens: int, told_s: int) -> None:
    drain(rate, clock, tokens_per_s=10, seconds=10)
    assert rate.retry_after_s(num_tokens) == told_s
