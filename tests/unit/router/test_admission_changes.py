"""Whatever workers, clients and clock do, those who wait get in or hear why, and no token is lost."""

import asyncio
import random
from collections.abc import Callable

import pytest

from router.admission import LOOK_INTERVAL_S
from router.endpoints import Route
from tests.unit.router.admission_house import House, full, settle
from tests.unit.router.factories import make_context, make_worker
from wire.errors import DeadlineExceeded, Overloaded


@pytest.fixture
def house() -> House:
    return House()


@pytest.mark.parametrize("way", ["told", "looked"])
async def test_a_worker_that_comes_wakes_those_who_wait(house: House, way: str) -> None:
    first, second = full(), full()
    await house.enter(first)
    waiting = house.start(second)
    await settle()
    workers = [*house.workers, make_worker("prefill-1")]
    if way == "told":
        house.change(*workers)
    else:
        house.workers = workers
        house.timers.advance(LOOK_INTERVAL_S)
    await waiting
    for ctx in (first, second):
        house.admission.leave(ctx)
    assert house.is_empty


async def test_with_no_worker_left_newcomers_pass_to_be_told_so_and_the_others_wait_for_its_return(
    house: House,
) -> None:
    prefill, decode = house.workers
    first, second = full(), full()
    await house.enter(first)
    waiting = house.start(second)
    await settle()
    house.change(decode)
    newcomer = make_context()
    await house.enter(newcomer)
    await settle()
    assert not waiting.done()
    house.admission.leave(first)
    house.admission.leave(newcomer)
    house.change(prefill, decode)
    await waiting
    house.admission.leave(second)
    assert house.is_empty


async def test_where_decode_may_do_it_alone_nobody_waits_for_prefill_that_is_not_there() -> None:
    house = House(no_prefill="decode_only")
    await house.enter(full())
    waiting = house.start(full())
    await settle()
    assert not waiting.done()
    house.change(house.workers[1])
    await waiting


async def test_where_decode_may_do_it_alone_one_still_waits_for_decode() -> None:
    house = House(no_prefill="decode_only")
    house.change(house.workers[1])
    first, second = make_context(decode_tokens=200), full()
    await house.enter(first)
    waiting = house.start(second)
    await settle()
    assert not waiting.done()
    house.admission.leave(first)
    await waiting
    assert (second.prefill_held, second.decode_held) == (0, 100)
    house.admission.leave(second)
    assert house.is_empty


async def test_a_second_attempt_takes_its_tokens_without_waiting(house: House) -> None:
    first, second = full(), full()
    await house.enter(first)
    house.admission.end_prefill(first)
    await house.enter(second)
    house.admission.enter_again(first)
    house.admission.enter_again(first)
    assert house.admission.prefill.num_in_flight_tokens == 200
    first.plan = first.checked_plan()._replace(route=Route.DECODE_ONLY)
    house.admission.enter_again(first)
    assert house.admission.prefill.num_in_flight_tokens == 100
    for ctx in (first, second):
        house.admission.leave(ctx)
    assert house.is_empty


async def test_waits_are_measured_and_those_who_wait_are_shown(house: House) -> None:
    first, second = full(), full()
    await house.enter(first)
    waiting = house.start(second)
    await settle()
    assert house.count('tandem_router_queued_requests{role="prefill"}') == 1
    assert house.count('tandem_router_queued_tokens{role="prefill"}') == 100
    assert house.count('tandem_router_tokens_in_flight{role="decode"}') == 200
    assert house.count('tandem_router_tokens_limit{role="decode"}') == 200
    house.timers.advance(3)
    house.admission.leave(first)
    await waiting
    assert house.count("tandem_router_queue_wait_seconds_count") == 1
    assert house.count("tandem_router_queue_wait_seconds_sum") == 3
    house.admission.leave(second)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_everyone_gets_in_or_hears_why_and_no_token_is_lost(seed: int) -> None:
    house, dice = House(queue_timeout_s=5), random.Random(seed)
    prefill, decode = house.workers
    outcomes: list[str] = []

    async def live() -> None:
        ctx = make_context(
            route=dice.choice(list(Route)),
            prefill_tokens=dice.randrange(1, 150),
            decode_tokens=dice.randrange(1, 300),
            priority=dice.randrange(-1, 2),
            key_name=dice.choice("ab"),
        )
        try:
            await house.enter(ctx)
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            house.admission.end_prefill(ctx)
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            outcomes.append("served")
        except (Overloaded, DeadlineExceeded) as error:
            outcomes.append(str(error.code))
        finally:
            house.admission.leave(ctx)

    def change_workers() -> None:
        house.change(*dice.sample([prefill, decode, make_worker("prefill-1")], dice.randrange(4)))

    tasks: list[asyncio.Task[None]] = []
    events: list[Callable[[], object]] = [
        lambda: tasks.append(asyncio.create_task(live())),
        lambda: tasks.append(asyncio.create_task(live())),
        lambda: tasks.append(asyncio.create_task(live())),
        lambda: dice.choice(tasks).cancel() if tasks else None,
        lambda: house.timers.advance(dice.random() * 2),
        change_workers,
    ]
    for _ in range(300):
        dice.choice(events)()
        if dice.random() < 0.6:
            await asyncio.sleep(0)
    house.change(prefill, decode)
    ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ended)
    assert set(outcomes) <= {"served", "queue_full", "queue_timeout"}
    assert outcomes.count("served") > 20
    assert house.is_empty
