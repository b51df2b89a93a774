"""Policies spread work, and avoid what failed while there is something else."""

from router.select import LeastLoaded, RoundRobin, Selector
from tests.unit.router.factories import make_worker
from wire.worker import WorkerRole


def test_round_robin_gives_each_worker_its_turn() -> None:
    workers = [make_worker(name) for name in "abc"]
    selector = Selector(RoundRobin())
    picks = [selector.select(workers) for _ in range(6)]
    assert picks == workers * 2


def test_round_robin_goes_on_when_a_worker_leaves_and_comes_back() -> None:
    a, b, c = (make_worker(name) for name in "abc")
    selector = Selector(RoundRobin())
    assert [selector.select([a, b, c]) for _ in range(2)] == [a, b]
    assert selector.select([a, b]) is a
    assert selector.select([a, b, c]) is c


def test_least_loaded_prefill_is_the_one_with_the_fewest_prompt_bytes() -> None:
    few_long, many_short = make_worker("a"), make_worker("b")
    few_long.num_in_flight, few_long.bytes_in_flight = 1, 100_000
    many_short.num_in_flight, many_short.bytes_in_flight = 5, 5_000
    assert Selector(LeastLoaded()).select([few_long, many_short]) is many_short


def test_least_loaded_decode_is_the_one_with_the_fewest_requests() -> None:
    few_long, many_short = make_worker("a", WorkerRole.DECODE), make_worker("b", WorkerRole.DECODE)
    few_long.num_in_flight, few_long.bytes_in_flight = 1, 100_000
    many_short.num_in_flight, many_short.bytes_in_flight = 5, 5_000
    assert Selector(LeastLoaded()).select([few_long, many_short]) is few_long


def test_equally_loaded_workers_take_turns() -> None:
    workers = [make_worker(name) for name in "ab"]
    selector = Selector(LeastLoaded())
    assert [selector.select(workers) for _ in range(4)] == workers * 2


def test_a_worker_to_avoid_is_picked_only_when_alone() -> None:
    a, b = make_worker("a"), make_worker("b")
    selector = Selector(LeastLoaded())
    assert {selector.select([a, b], avoid=["a"]) for _ in range(3)} == {b}
    assert selector.select([a], avoid=["a"]) is a


def test_nobody_is_picked_from_nobody() -> None:
    assert Selector(RoundRobin()).select([]) is None
