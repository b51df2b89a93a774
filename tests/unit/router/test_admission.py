"""A request is let in at once while there is room, else in turn and in time, and leaves nothing behind."""

import asyncio
from typing import Any

import pytest

from router.admission import LOOK_INTERVAL_S
from router.endpoints import Route, Stage
from tests.unit.router.admission_house import House, full, settle
from tests.unit.router.factories import make_context
from wire.errors import DeadlineExceeded, Overloaded


@pytest.fixture
def house() -> House:
    return House()


async def test_with_room_a_request_enters_without_waiting_and_without_a_timer(house: House) -> None:
    ctx = make_context()
    assert house.admission.try_enter(ctx, ctx.checked_plan())
    assert (house.admission.prefill.num_in_flight_tokens, house.admission.decode.num_in_flight_tokens) == (10, 20)
    assert house.timers.num_pending == 0
    house.admission.end_prefill(ctx)
    assert house.admission.prefill.num_in_flight_tokens == 0
    house.admission.leave(ctx)
    house.admission.leave(ctx)
    assert house.is_empty


async def test_decode_alone_does_not_take_from_prefill_or_wait_for_it() -> None:
    house = House(decode_tokens_per_worker=300)
    await house.enter(full())
    waiting = house.start(full())
    await settle()
    ctx = make_context(route=Route.DECODE_ONLY)
    assert house.admission.try_enter(ctx, ctx.checked_plan())
    assert (ctx.prefill_held, ctx.decode_held, waiting.done()) == (0, 20, False)
    waiting.cancel()


async def test_the_next_one_enters_when_prefill_is_done_with_the_last(house: House) -> None:
    first, second = full(), full()
    await house.enter(first)
    waiting = house.start(second)
    await settle()
    assert (waiting.done(), second.stage, second.decode_held, second.prefill_held) == (False, Stage.QUEUE, 100, 0)
    house.admission.end_prefill(first)
    await waiting
    assert second.prefill_held == 100
    for ctx in (first, second):
        house.admission.leave(ctx)
    assert house.is_empty


async def test_turns_go_by_priority_then_between_keys_then_by_arrival(house: House) -> None:
    order: list[str] = []
    first = full()
    await house.enter(first)

    async def come(name: str, **fields: Any) -> None:
        ctx = make_context(prefill_tokens=100, decode_tokens=200, **fields)
        await house.enter(ctx)
        order.append(name)
        house.admission.leave(ctx)

    tasks = []
    for name, priority in {"a1": 0, "a2": 0, "b1": 0, "a3": -1}.items():
        tasks.append(asyncio.create_task(come(name, key_name=name[0], priority=priority)))
        await settle()
    house.admission.leave(first)
    await asyncio.gather(*tasks)
    assert order == ["a3", "b1", "a1", "a2"]
    assert house.is_empty


async def test_a_full_queue_refuses_with_a_time_to_come_back(house: House) -> None:
    await house.enter(make_context(decode_tokens=200))
    waiting = house.start(make_context(decode_tokens=1000))
    await settle()
    with pytest.raises(Overloaded) as caught:
        await house.enter(make_context(decode_tokens=1))
    assert (caught.value.code, caught.value.retry_after_s) == ("queue_full", 1)
    assert house.count('tandem_router_admission_refused_total{reason="queue_full"}') == 1
    waiting.cancel()


async def test_who_waits_too_long_is_told_so_and_has_left(house: House) -> None:
    first = full()
    await house.enter(first)
    waiting = house.start(full())
    await settle()
    house.timers.advance(29.9)
    await settle()
    assert not waiting.done()
    house.timers.advance(0.2)
    with pytest.raises(DeadlineExceeded) as caught:
        await waiting
    assert (caught.value.code, caught.value.retry_after_s) == ("queue_timeout", 60)
    assert house.count('tandem_router_admission_refused_total{reason="queue_timeout"}') == 1
    assert house.admission.decode.num_in_flight_tokens == 100
    house.admission.leave(first)
    assert house.is_empty


async def test_the_time_limit_is_for_both_roles_together(house: House) -> None:
    decoding, prefilling = make_context(decode_tokens=200), full(route=Route.PREFILL_DECODE)
    await house.enter(decoding)
    waiting = house.start(prefilling)
    await settle()
    house.timers.advance(20)
    house.admission.prefill.room -= 100
    house.admission.leave(decoding)
    await settle()
    assert prefilling.decode_held == 100
    house.timers.advance(10.1)
    with pytest.raises(DeadlineExceeded):
        await waiting
    house.admission.prefill.room += 100
    assert house.is_empty


async def test_without_a_time_limit_one_may_wait_for_ever() -> None:
    house = House(queue_timeout_s=0)
    first, second = full(), full()
    await house.enter(first)
    waiting = house.start(second)
    await settle()
    house.timers.advance(10_000)
    await settle()
    assert not waiting.done()
    house.admission.leave(first)
    await waiting
    house.admission.leave(second)
    assert house.is_empty


async def test_a_client_that_leaves_while_it_waits_has_left_the_queue_at_once(house: House) -> None:
    await house.enter(make_context(decode_tokens=200))
    waiting = house.start(full())
    await settle()
    waiting.cancel()
    await settle()
    assert house.admission.decode.num_waiting == 0
    assert house.timers.num_pending <= 1  # the look at the workers ends by itself
    house.timers.advance(LOOK_INTERVAL_S)
    assert house.timers.num_pending == 0


async def test_a_client_that_leaves_just_as_its_turn_comes_gives_its_tokens_to_the_next(house: House) -> None:
    first, third = make_context(decode_tokens=200), make_context(decode_tokens=200)
    await house.enter(first)
    leaving, following = house.start(make_context(decode_tokens=200)), house.start(third)
    await settle()
    house.admission.leave(first)
    leaving.cancel()
    await following
    assert leaving.cancelled()
    house.admission.leave(third)
    assert house.is_empty


async def test_a_turn_that_comes_together_with_the_end_of_the_time_counts(house: House) -> None:
    first, second = make_context(decode_tokens=200), make_context(decode_tokens=200)
    await house.enter(first)
    waiting = house.start(second)
    await settle()
    house.timers.advance(31)
    house.admission.leave(first)
    await waiting
    house.admission.leave(second)
    assert house.is_empty
