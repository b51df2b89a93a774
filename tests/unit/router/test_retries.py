"""Second attempts are a small part of all requests, so that an outage is not met with twice the load."""

import pytest

from router.retries import FLOOR_RPS, MAX_SAVED, RetryBudget
from tests.unit.router.factories import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def take_all(budget: RetryBudget) -> int:
    number = 0
    while budget.take():
        number += 1
    return number


def test_some_are_allowed_from_the_start(clock: ManualClock) -> None:
    assert take_all(RetryBudget(0.2, clock)) == MAX_SAVED


def test_in_an_outage_they_are_a_fifth_of_the_requests(clock: ManualClock) -> None:
    budget = RetryBudget(0.2, clock)
    take_all(budget)
    num_retries = 0
    for _ in range(1000):
        budget.num_requests += 1
        num_retries += budget.take()
    assert num_retries == pytest.approx(200, abs=1)


def test_a_router_with_little_to_do_may_retry_now_and_then(clock: ManualClock) -> None:
    budget = RetryBudget(0.0, clock)
    take_all(budget)
    clock.now_s += 5 / FLOOR_RPS
    assert take_all(budget) == 5


def test_quiet_times_are_not_saved_up(clock: ManualClock) -> None:
    budget = RetryBudget(0.2, clock)
    budget.num_requests += 1_000_000
    clock.now_s += 1_000_000
    assert take_all(budget) == MAX_SAVED
