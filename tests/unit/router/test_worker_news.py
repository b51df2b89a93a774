"""A process that is told of workers knows them as the one that hears from them does."""

from typing import Any

import pytest

from router.dialects import NIXL
from router.pools import Pools
from router.process_messages import Workers, decode, encode
from router.worker_news import TellingRegistry, ToldRegistry
from router.workers import BreakerState, Worker
from tests.unit.router.factories import ManualClock, make_heartbeat
from wire.worker import WorkerRole, WorkerState

TTL_S = 6.0
CHILD_CLOCK_AHEAD_S = 500.0


class House:
    """A parent's and a child's registry, and the news between them, on clocks that show different times."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.heard: list[str] = []
        self.suspected: list[Worker] = []
        self.pools: list[Pools] = []
        self.parent = TellingRegistry(ttl_s=TTL_S, clock=self.clock)
        self.parent.on_news = self.heard.append
        self.child = self.new_child()

    def new_child(self) -> ToldRegistry:
        child = ToldRegistry(
            ttl_s=TTL_S, clock=lambda: self.clock.now_s + CHILD_CLOCK_AHEAD_S, on_suspect=self.suspected.append
        )
        child.on_pools = self.pools.append
        return child

    def tell(self, child: ToldRegistry | None = None, worker_ids: list[str] | None = None) -> None:
        """What there is to tell, over the wire."""
        ids, self.heard[:] = dict.fromkeys(self.heard if worker_ids is None else worker_ids), []
        heard, gone = self.parent.news_of(ids)
        told = decode(encode(Workers(heard=heard, gone=gone, has_been_whole=False)))
        assert isinstance(told, Workers)
        (child or self.child).take(told.heard, told.gone)

    def beat(self, worker_id: str = "prefill-0", **fields: Any) -> None:
        """A heartbeat, as the control routes take it."""
        self.parent.tell_peers(self.parent.heartbeat(make_heartbeat(worker_id, **fields)))

    def usable(self, role: WorkerRole = WorkerRole.PREFILL) -> list[str]:
        return [worker.worker_id for worker in self.child.pools().usable(role)]


@pytest.fixture
def house() -> House:
    return House()


def test_a_pair_that_registers_serves_in_the_child_too(house: House) -> None:
    house.beat()
    house.beat("decode-0", role=WorkerRole.DECODE)
    house.tell()
    assert house.child.pools().missing_roles() == []
    [prefill] = house.child.pools().usable_prefills("nano")
    assert [decode.worker_id for decode in house.child.pools().usable_decodes(prefill, "nano")] == ["decode-0"]


def test_a_decode_worker_is_not_paired_before_it_was_told_of_its_peer(house: House) -> None:
    house.beat("decode-0", role=WorkerRole.DECODE)
    house.beat()
    house.tell()
    assert house.child.pools().missing_roles() == [WorkerRole.PREFILL, WorkerRole.DECODE]
    house.beat("decode-0", role=WorkerRole.DECODE)
    house.tell()
    assert house.child.pools().missing_roles() == []


def test_one_that_starts_late_learns_of_all_workers_in_their_order(house: House) -> None:
    for worker_id in ("prefill-1", "prefill-0"):
        house.beat(worker_id)
    late = house.new_child()
    house.tell(late, house.parent.all_ids())
    assert [worker.worker_id for worker in late.workers()] == ["prefill-1", "prefill-0"]


def test_a_worker_that_leaves_is_gone(house: House) -> None:
    house.beat()
    house.tell()
    house.parent.remove("prefill-0")
    house.tell()
    assert house.child.workers() == []


def test_a_silent_worker_is_forgotten_at_the_same_time(house: House) -> None:
    house.beat()
    house.clock.now_s += TTL_S - 1
    house.tell()
    assert house.usable() == ["prefill-0"]
    house.clock.now_s += 1.01
    assert (house.usable(), list(house.parent.workers())) == ([], [])


def test_each_heartbeat_prolongs_its_time_without_a_change_of_who_may_be_given_what(house: House) -> None:
    house.beat()
    house.tell()
    num_changes = len(house.pools)
    for _ in range(3):
        house.clock.now_s += TTL_S - 1
        house.beat()
        house.tell()
        assert len(house.pools) == num_changes
    house.clock.now_s += TTL_S - 1
    assert house.usable() == ["prefill-0"]


def test_the_childs_own_load_and_breaker_outlive_news_but_not_a_new_generation(house: House) -> None:
    house.beat()
    house.tell()
    [worker] = house.child.workers()
    worker.begin_leg(100)
    worker.breaker = BreakerState.OPEN
    house.beat()
    house.tell()
    assert house.child.workers() == [worker]
    assert (worker.num_in_flight, worker.breaker) == (1, BreakerState.OPEN)
    house.beat(generation="g2", url="http://127.0.0.1:9999")
    house.tell()
    [new] = house.child.workers()
    assert (new.num_in_flight, new.breaker, new.url) == (0, BreakerState.CLOSED, "http://127.0.0.1:9999")


def test_a_suspect_is_one_everywhere_until_it_is_heard_again(house: House) -> None:
    house.beat()
    house.tell()
    [worker] = house.child.workers()
    house.child.suspect(worker)
    house.child.suspect(worker)
    assert (house.usable(), house.suspected) == ([], [worker])
    house.parent.suspect_by_id("prefill-0", "g1")
    other = house.new_child()
    house.tell(other, house.parent.all_ids())
    assert list(other.pools().usable(WorkerRole.PREFILL)) == []
    house.beat()
    house.tell()
    assert house.usable() == ["prefill-0"]


@pytest.mark.parametrize(("worker_id", "generation"), [("prefill-0", "g0"), ("prefill-9", "g1")])
def test_what_is_said_of_another_life_or_of_nobody_is_not_heard(house: House, worker_id: str, generation: str) -> None:
    house.beat()
    house.parent.suspect_by_id(worker_id, generation)
    [worker] = house.parent.workers()
    assert not worker.is_suspect


def test_a_state_is_followed(house: House) -> None:
    for state in (WorkerState.STARTING, WorkerState.READY, WorkerState.DRAINING):
        house.beat(state=state)
        house.tell()
        assert house.usable() == (["prefill-0"] if state is WorkerState.READY else [])


def test_static_workers_come_with_what_their_probes_found(house: House) -> None:
    worker = house.parent.add_static(WorkerRole.DECODE, "http://decode:1")
    house.tell()
    assert house.usable(WorkerRole.DECODE) == []
    house.parent.observe_static(worker, model="m", max_model_len=10, other_models=("alias",), dialect=NIXL)
    house.tell()
    [told] = house.child.pools().usable(WorkerRole.DECODE)
    assert (told.models, told.max_model_len, told.is_static) == (("m", "alias"), 10, True)
    assert told.dialect is NIXL
    house.clock.now_s += 100 * TTL_S
    assert house.usable(WorkerRole.DECODE) == [told.worker_id]
    house.parent.observe_static(worker, model=None, max_model_len=None)
    house.tell()
    assert house.usable(WorkerRole.DECODE) == []
