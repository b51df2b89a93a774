"""A worker that keeps failing is left alone for a growing time, then tried with one request, and never given up."""

import pytest

from router.breakers import PROBE_PATIENCE_S, Breakers
from router.registry import WorkerRegistry
from router.workers import BreakerState, Worker
from tests.unit.router.factories import ManualClock, make_heartbeat
from wire.worker import WorkerRole

MAX_FAILURES = 3
OPEN_S = 1.0
MAX_OPEN_S = 8.0


class Ward:
    """A registry with two prefill and two decode workers, and their breakers."""

    def __init__(self, *, max_failures: int = MAX_FAILURES) -> None:
        self.clock = ManualClock()
        self.registry = WorkerRegistry(ttl_s=10_000, clock=self.clock)
        self.random = 1.0
        self.trips: list[WorkerRole] = []
        self.breakers = Breakers(
            max_failures=max_failures,
            open_s=OPEN_S,
            max_open_s=MAX_OPEN_S,
            clock=self.clock,
            random=lambda: self.random,
            on_change=self.registry.refresh,
            on_trip=self.trips.append,
        )
        for role in WorkerRole:
            for number in range(2):
                self.beat(f"{role.value}-{number}")
        for decode in self.registry.pools().usable(WorkerRole.DECODE):
            self.registry.tell_peers(decode)

    def beat(self, worker_id: str, generation: str = "g1") -> Worker:
        role = WorkerRole(worker_id.split("-")[0])
        return self.registry.heartbeat(
            make_heartbeat(worker_id, role=role, url=f"http://{worker_id}", generation=generation)
        )

    def worker(self, worker_id: str) -> Worker:
        return next(worker for worker in self.registry.workers() if worker.worker_id == worker_id)

    def usable(self, role: WorkerRole = WorkerRole.PREFILL) -> set[str]:
        return {worker.worker_id for worker in self.registry.pools().usable(role)}

    def trip(self, worker: Worker) -> None:
        for _ in range(MAX_FAILURES):
            self.breakers.fail(worker)

    def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds


@pytest.fixture
def ward() -> Ward:
    return Ward()


def test_failures_in_a_row_open_it_and_take_the_worker_out(ward: Ward) -> None:
    worker = ward.worker("prefill-0")
    for _ in range(MAX_FAILURES - 1):
        ward.breakers.fail(worker)
    assert ward.usable() == {"prefill-0", "prefill-1"}
    ward.breakers.fail(worker)
    assert ward.usable() == {"prefill-1"}
    assert {prefill.worker_id for prefill in ward.registry.pools().usable_prefills()} == {"prefill-1"}
    assert ward.trips == [WorkerRole.PREFILL]


def test_a_success_in_between_starts_the_count_anew(ward: Ward) -> None:
    worker = ward.worker("prefill-0")
    for _ in range(10):
        ward.breakers.fail(worker)
        ward.breakers.succeed(worker)
    assert worker.breaker is BreakerState.CLOSED


def test_with_no_number_of_failures_it_never_opens() -> None:
    ward = Ward(max_failures=0)
    ward.trip(ward.worker("prefill-0"))
    assert (ward.usable(), ward.trips) == ({"prefill-0", "prefill-1"}, [])


def test_after_its_time_one_request_passes_and_no_second_beside_it(ward: Ward) -> None:
    worker = ward.worker("prefill-0")
    ward.trip(worker)
    ward.pass_time(OPEN_S - 0.01)
    assert ward.usable() == {"prefill-1"}
    ward.pass_time(0.02)
    assert ward.usable() == {"prefill-0", "prefill-1"}
    ward.breakers.begin_leg(worker)
    assert ward.usable() == {"prefill-1"}


def test_a_good_end_closes_it(ward: Ward) -> None:
    worker = ward.worker("prefill-0")
    ward.trip(worker)
    ward.pass_time(OPEN_S + 0.01)
    ward.usable()
    ward.breakers.begin_leg(worker)
    ward.breakers.end_probe(worker)
    ward.breakers.succeed(worker)
    assert ward.usable() == {"prefill-0", "prefill-1"}
    assert (worker.breaker, worker.num_failures, worker.num_trips) == (BreakerState.CLOSED, 0, 0)


def test_a_bad_end_opens_it_for_twice_as_long_up_to_a_bound(ward: Ward) -> None:
    worker = ward.worker("prefill-0")
    ward.trip(worker)
    for open_s in (2.0, 4.0, 8.0, 8.0, 8.0):
        ward.clock.now_s = worker.breaker_end_s + 0.01
        ward.usable()
        ward.breakers.begin_leg(worker)
        ward.breakers.end_probe(worker)
        ward.breakers.fail(worker)
        assert worker.breaker_end_s - ward.clock.now_s == pytest.approx(open_s)
    assert len(ward.trips) == 6


@pytest.mark.parametrize(("drawn", "open_s"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_the_time_is_shortened_at_random_to_half_at_the_least(drawn: float, open_s: float) -> None:
    ward = Ward()
    ward.random = drawn
    worker = ward.worker("prefill-0")
    ward.trip(worker)
    assert worker.breaker_end_s - ward.clock.now_s == pytest.approx(open_s)


def test_a_probe_that_says_nothing_about_the_worker_makes_room_for_the_next(ward: Ward) -> None:
    worker = ward.worker("prefill-0")
    ward.trip(worker)
    ward.pass_time(OPEN_S + 0.01)
    ward.usable()
    ward.breakers.begin_leg(worker)
    ward.breakers.end_probe(worker)
    assert worker.breaker is BreakerState.HALF_OPEN
    assert ward.usable() == {"prefill-0", "prefill-1"}


def test_a_probe_that_takes_long_does_not_keep_the_next_one_out(ward: Ward) -> None:
    worker = ward.worker("prefill-0")
    ward.trip(worker)
    ward.pass_time(OPEN_S + 0.01)
    ward.usable()
    ward.breakers.begin_leg(worker)
    ward.pass_time(PROBE_PATIENCE_S - 0.01)
    assert ward.usable() == {"prefill-1"}
    ward.pass_time(0.02)
    assert ward.usable() == {"prefill-0", "prefill-1"}


def test_requests_from_before_neither_close_it_nor_keep_it_open_longer(ward: Ward) -> None:
    worker = ward.worker("prefill-0")
    ward.trip(worker)
    end_s = worker.breaker_end_s
    ward.breakers.succeed(worker)
    ward.breakers.fail(worker)
    assert (worker.breaker, worker.breaker_end_s, len(ward.trips)) == (BreakerState.OPEN, end_s, 1)


def test_where_all_are_open_each_is_tried_at_once_with_one_request(ward: Ward) -> None:
    for number in range(2):
        ward.trip(ward.worker(f"prefill-{number}"))
    assert ward.usable() == {"prefill-0", "prefill-1"}
    ward.breakers.begin_leg(ward.worker("prefill-0"))
    assert ward.usable() == {"prefill-1"}
    ward.breakers.begin_leg(ward.worker("prefill-1"))
    assert ward.usable() == set()
    ward.breakers.end_probe(ward.worker("prefill-0"))
    ward.breakers.succeed(ward.worker("prefill-0"))
    assert ward.usable() == {"prefill-0"}


def test_an_open_decode_is_tried_where_nobody_else_can_read_from_the_prefill(ward: Ward) -> None:
    prefill, decode = ward.beat("prefill-0", generation="g2"), ward.worker("decode-0")
    ward.registry.tell_peers(decode)
    assert [w.worker_id for w in ward.registry.pools().usable_decodes(prefill)] == ["decode-0"]
    ward.trip(decode)
    assert ward.usable(WorkerRole.DECODE) == {"decode-1"}
    assert [w.worker_id for w in ward.registry.pools().usable_decodes(prefill)] == ["decode-0"]
    assert prefill in ward.registry.pools().usable_prefills()


def test_readiness_does_not_depend_on_breakers(ward: Ward) -> None:
    for number in range(2):
        worker = ward.worker(f"decode-{number}")
        ward.trip(worker)
        ward.breakers.begin_leg(worker)
    assert ward.usable(WorkerRole.DECODE) == set()
    assert ward.registry.pools().missing_roles() == []
    assert set(ward.registry.pools().models) == {"nano"}


def test_a_restarted_worker_begins_with_a_closed_breaker(ward: Ward) -> None:
    ward.trip(ward.worker("prefill-0"))
    ward.beat("prefill-0", generation="g2")
    assert ward.usable() == {"prefill-0", "prefill-1"}


def test_whoever_waits_for_the_pools_hears_of_each_change(ward: Ward) -> None:
    worker, heard = ward.worker("prefill-0"), list[int]()
    ward.registry.on_pools = lambda pools: heard.append(len(pools.usable(WorkerRole.PREFILL)))
    ward.trip(worker)
    ward.pass_time(OPEN_S + 0.01)
    ward.registry.pools()
    ward.breakers.begin_leg(worker)
    ward.breakers.end_probe(worker)
    ward.breakers.succeed(worker)
    assert heard == [1, 2, 1, 2, 2]
