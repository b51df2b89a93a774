"""A request ends when its time is up, the client's or the operator's, whichever is shorter."""

import asyncio

import pytest

from router.deadline import TIMEOUT_HEADER, RequestDeadlines, RequestTimedOut
from tests.unit.router.factories import ManualClock
from wire.errors import BadRequest


def make(limit_s: float = 0.0) -> tuple[RequestDeadlines, list[None]]:
    timeouts: list[None] = []
    return RequestDeadlines(limit_s, on_timeout=lambda: timeouts.append(None), clock=ManualClock()), timeouts


@pytest.mark.parametrize(
    ("setting_s", "header", "limit_s"),
    [
        (0, None, None),
        (0, "2.5", 2.5),
        (10, None, 10),
        (10, "2", 2),
        (10, "3600", 10),
        (0, " 7 ", 7),
    ],
)
def test_the_shorter_limit_counts(setting_s: float, header: str | None, limit_s: float | None) -> None:
    deadlines, _ = make(setting_s)
    assert deadlines.limit_s({} if header is None else {TIMEOUT_HEADER: header}) == limit_s


@pytest.mark.parametrize("header", ["", "0", "-1", "soon", "nan", "inf", "1e999", "5s", "0x5"])
def test_a_wrong_header_is_refused_by_name(header: str) -> None:
    deadlines, _ = make()
    with pytest.raises(BadRequest) as caught:
        deadlines.limit_s({TIMEOUT_HEADER: header})
    assert caught.value.param == TIMEOUT_HEADER


async def test_work_that_is_done_in_time_is_left_alone() -> None:
    deadlines, timeouts = make()

    async def work() -> None:
        await asyncio.sleep(0)

    await deadlines.bounded(work(), 60, 1000.0)
    assert timeouts == []


async def test_work_past_its_time_is_cancelled_and_has_unwound() -> None:
    deadlines, timeouts = make()
    unwound: list[None] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            unwound.append(None)

    # It arrived 60 s ago, by the clock: nothing is left.
    with pytest.raises(RequestTimedOut) as caught:
        await deadlines.bounded(work(), 60, 940.0)
    assert (caught.value.status, caught.value.code) == (504, "request_timeout")
    assert len(unwound) == len(timeouts) == 1


async def test_somebody_elses_timeout_is_passed_on() -> None:
    deadlines, timeouts = make()

    async def work() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await deadlines.bounded(work(), 60, 1000.0)
    assert timeouts == []


async def test_a_cancellation_from_outside_stays_one() -> None:
    deadlines, timeouts = make()
    task = asyncio.create_task(deadlines.bounded(asyncio.Event().wait(), 60, 1000.0))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert timeouts == []
