"""A router that stops takes nothing new, and is done when it is idle or out of time."""

from router.drain import Drain
from tests.unit.router.factories import ManualClock

LIMIT_S = 30.0


class Router:
    """A drain over a number of requests that tests set."""

    def __init__(self) -> None:
        self.clock, self.num_active = ManualClock(), 1
        self.drain = Drain(LIMIT_S, num_active=lambda: self.num_active, clock=self.clock)


def test_it_is_over_as_soon_as_the_last_request_has_ended() -> None:
    router = Router()
    router.drain.begin()
    assert not router.drain.is_over
    router.num_active = 0
    assert router.drain.is_over


def test_an_idle_router_does_not_stop_by_itself() -> None:
    router = Router()
    router.num_active = 0
    assert not router.drain.is_over


def test_it_is_over_when_the_time_is_up_and_a_second_begin_adds_none() -> None:
    router = Router()
    router.drain.begin()
    router.clock.now_s += LIMIT_S - 1
    router.drain.begin()
    assert (router.drain.is_over, router.drain.left_s) == (False, 1.0)
    router.clock.now_s += 1
    assert (router.drain.is_over, router.drain.left_s) == (True, 0.0)


def test_it_can_be_cut_short() -> None:
    router = Router()
    router.drain.begin()
    router.drain.cut()
    assert (router.drain.is_over, router.drain.left_s) == (True, 0.0)


def test_a_new_request_is_told_when_to_come_again() -> None:
    refusal = Router().drain.refuse()
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (503, "draining", 1)


def test_it_waits_for_others_of_its_router_while_there_is_time() -> None:
    router = Router()
    router.num_active = 0
    router.drain.begin()
    are_over = []
    for is_held in (True, False):
        router.drain.is_held = is_held
        are_over.append(router.drain.is_over)
    assert are_over == [False, True]
    router.drain.is_held = True
    router.drain.cut()
    assert router.drain.is_over
