"""A request is let in at once while there is room, else in turn and in time, and leaves nothing behind."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from router.admission import LOOK_INTERVAL_S, Admission
from router.config import RouterConfig
from router.context import RequestContext, Route, Stage
from router.key_usage import KeyUsage
from router.metrics import RouterMetrics
from router.pools import Pools
from router.workers import Worker
from tests.unit.router.factories import ManualTimers, make_context, make_worker
from wire.errors import DeadlineExceeded, Overloaded
from wire.worker import WorkerRole

SETTINGS: dict[str, Any] = {
    "prefill_tokens_per_worker": 100,
    "decode_tokens_per_worker": 200,
    "max_queued_tokens": 1000,
    "queue_timeout_s": 30,
}


class House:
    """An admission with one worker of each role, and a clock that moves only when told."""

    def __init__(self, **settings: Any) -> None:
        self.timers = ManualTimers()
        self.workers = [make_worker("prefill-0"), make_worker("decode-0", WorkerRole.DECODE)]
        self.metrics = RouterMetrics(lambda: self.workers, lambda: 0, KeyUsage())
        self.admission = Admission(
            RouterConfig.model_validate(SETTINGS | settings),
            pools=self.pools,
            metrics=self.metrics.lifecycle,
            clock=self.timers.clock,
            call_later=self.timers.call_later,
        )
        self.metrics.lifecycle.gates += (self.admission.prefill, self.admission.decode)
        self.admission.set_pools(self.pools())

    def pools(self) -> Pools:
        return Pools(self.workers)

    def change(self, *workers: Worker) -> None:
        self.workers = list(workers)
        self.admission.set_pools(self.pools())

    async def enter(self, ctx: RequestContext) -> None:
        """As the pipeline does it, but for what follows."""
        try:
            if not self.admission.try_enter(ctx, ctx.checked_plan()):
                await self.admission.wait(ctx)
        except BaseException:
            self.admission.leave(ctx)
            raise

    def start(self, ctx: RequestContext) -> "asyncio.Task[None]":
        return asyncio.create_task(self.enter(ctx))

    def count(self, sample: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(sample + " "))

    @property
    def is_empty(self) -> bool:
        gates = (self.admission.prefill, self.admission.decode)
        return all(gate.num_in_flight_tokens == gate.num_waiting == gate.num_waiting_tokens == 0 for gate in gates)


@pytest.fixture
def house() -> House:
    return House()


async def settle() -> None:
    """Until every task has gone as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


def full(**fields: Any) -> RequestContext:
    """A request that takes all of prefill and half of decode."""
    return make_context(prefill_tokens=100, decode_tokens=100, **fields)


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
