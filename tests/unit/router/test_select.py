"""Policies spread work, keep what belongs together, and avoid what failed while there is something else."""

import json
from collections import Counter
from random import Random

import pytest

from router.body import ClientBody
from router.config import RouterConfig
from router.context import RequestContext
from router.select import (
    FOREIGN_REQUEST_TOKENS,
    POLICIES,
    SPILL_FREE_TOKENS,
    LeastLoaded,
    PowerOfTwo,
    PrefixAffinity,
    QueueDepth,
    RoundRobin,
    Selector,
    make_selectors,
)
from router.workers import Worker
from tests.unit.router.factories import make_context, make_worker
from wire.worker import WorkerRole, WorkerState, WorkerStatus

CTX = make_context()


def asking(prompt: str, *, tokens: int = 100) -> RequestContext:
    """A chat whose only message is ``prompt``."""
    ctx = make_context(prefill_tokens=tokens, decode_tokens=2 * tokens)
    ctx.body = ClientBody.parse(json.dumps({"messages": [{"role": "user", "content": prompt}]}).encode())
    return ctx


def test_round_robin_gives_each_worker_its_turn() -> None:
    workers = [make_worker(name) for name in "abc"]
    selector = Selector(RoundRobin())
    picks = [selector.select(workers, CTX) for _ in range(6)]
    assert picks == workers * 2


def test_round_robin_goes_on_when_a_worker_leaves_and_comes_back() -> None:
    a, b, c = (make_worker(name) for name in "abc")
    selector = Selector(RoundRobin())
    assert [selector.select([a, b, c], CTX) for _ in range(2)] == [a, b]
    assert selector.select([a, b], CTX) is a
    assert selector.select([a, b, c], CTX) is c


def test_least_loaded_prefill_is_the_one_with_the_fewest_prompt_tokens() -> None:
    few_long, many_short = make_worker("a"), make_worker("b")
    few_long.num_in_flight, few_long.tokens_in_flight = 1, 100_000
    many_short.num_in_flight, many_short.tokens_in_flight = 5, 5_000
    assert Selector(LeastLoaded()).select([few_long, many_short], CTX) is many_short


def test_least_loaded_decode_is_the_one_with_the_fewest_requests() -> None:
    few_long, many_short = make_worker("a", WorkerRole.DECODE), make_worker("b", WorkerRole.DECODE)
    few_long.num_in_flight, few_long.tokens_in_flight = 1, 100_000
    many_short.num_in_flight, many_short.tokens_in_flight = 5, 5_000
    assert Selector(LeastLoaded()).select([few_long, many_short], CTX) is few_long


def test_equally_loaded_workers_take_turns() -> None:
    workers = [make_worker(name) for name in "ab"]
    selector = Selector(LeastLoaded())
    assert [selector.select(workers, CTX) for _ in range(4)] == workers * 2


def test_a_worker_to_avoid_is_picked_only_when_alone() -> None:
    a, b = make_worker("a"), make_worker("b")
    selector = Selector(LeastLoaded())
    assert {selector.select([a, b], CTX, avoid=["a"]) for _ in range(3)} == {b}
    assert selector.select([a], CTX, avoid=["a"]) is a


def test_nobody_is_picked_from_nobody() -> None:
    assert Selector(RoundRobin()).select([], CTX) is None


# --- power of two ---


def test_power_of_two_takes_the_less_loaded_of_two_drawn() -> None:
    workers = [make_worker(name) for name in "abc"]
    for worker, tokens in zip(workers, (0, 10, 20), strict=True):
        worker.tokens_in_flight = tokens
    policy = PowerOfTwo(Random(1))
    picks = Counter(policy.pick(workers, CTX).worker_id for _ in range(300))
    assert picks.keys() == {"a", "b"}  # the most loaded is never the better of two
    assert 170 <= picks["a"] <= 230


def test_power_of_two_can_do_with_one() -> None:
    worker = make_worker("a")
    assert PowerOfTwo(Random(1)).pick([worker], CTX) is worker


# --- queue depth ---


def reporting(name: str, *, running: int = 0, waiting: int = 0) -> Worker:
    worker = make_worker(name)
    worker.status = WorkerStatus(state=WorkerState.READY, num_requests_running=running, num_requests_waiting=waiting)
    return worker


def test_queue_depth_counts_the_tokens_that_this_router_has_there() -> None:
    long, short = make_worker("a"), make_worker("b")
    long.begin_leg(5000)
    short.begin_leg(100)
    assert QueueDepth().pick([long, short], CTX) is short


def test_queue_depth_counts_what_other_routers_have_there() -> None:
    busy, idle = reporting("a", running=2, waiting=3), reporting("b")
    idle.begin_leg(4 * FOREIGN_REQUEST_TOKENS)
    assert QueueDepth().pick([busy, idle], CTX) is idle
    idle.begin_leg(2 * FOREIGN_REQUEST_TOKENS)
    assert QueueDepth().pick([busy, idle], CTX) is busy


def test_queue_depth_does_not_count_its_own_requests_twice() -> None:
    mine, foreign = reporting("a", running=3), reporting("b", running=3)
    for _ in range(3):
        mine.begin_leg(FOREIGN_REQUEST_TOKENS // 2)
    assert QueueDepth().pick([mine, foreign], CTX) is mine


# --- prefix affinity ---


def test_the_same_start_goes_to_the_same_worker_and_different_ones_to_all() -> None:
    workers = [make_worker(f"prefill-{number}") for number in range(4)]
    policy = PrefixAffinity()
    picks = {text: policy.pick(workers, asking(text)).worker_id for text in map(str, range(200))}
    assert all(policy.pick(list(reversed(workers)), asking(text)).worker_id == name for text, name in picks.items())
    shares = Counter(picks.values())
    assert len(shares) == 4
    assert min(shares.values()) >= 30


def test_a_worker_that_goes_moves_its_own_conversations_and_no_others() -> None:
    workers = [make_worker(f"prefill-{number}") for number in range(4)]
    policy = PrefixAffinity()
    for text in map(str, range(100)):
        before = policy.pick(workers, asking(text))
        after = policy.pick(workers[:3], asking(text))
        assert after is before or before is workers[3]


def test_one_hot_start_spills_over_by_single_requests_and_returns() -> None:
    workers = [make_worker(f"prefill-{number}") for number in range(4)]
    policy = PrefixAffinity()
    home = policy.pick(workers, asking("hot"))
    picked: list[Worker] = []
    for _ in range(200):
        worker = policy.pick(workers, asking("hot", tokens=1000))
        worker.begin_leg(1000)
        picked.append(worker)
    loads = [worker.tokens_in_flight for worker in workers]
    assert max(loads) <= 1.25 * sum(loads) / 4 + 1000
    assert home.tokens_in_flight == max(loads)
    for worker in picked:
        worker.end_leg(1000)
    assert policy.pick(workers, asking("hot")) is home


def test_a_little_load_is_no_reason_to_leave_home() -> None:
    workers = [make_worker(f"prefill-{number}") for number in range(4)]
    policy = PrefixAffinity()
    home = policy.pick(workers, asking("hot"))
    home.begin_leg(SPILL_FREE_TOKENS - 100)
    assert policy.pick(workers, asking("hot", tokens=100)) is home
    assert policy.pick(workers, asking("hot", tokens=101)) is not home


def test_a_request_that_is_larger_than_the_bound_goes_where_nothing_is_before_it() -> None:
    workers = [make_worker(f"prefill-{number}") for number in range(2)]
    policy = PrefixAffinity()
    huge = asking("huge", tokens=100 * SPILL_FREE_TOKENS)
    home = policy.pick(workers, huge)
    home.begin_leg(1)
    other = policy.pick(workers, huge)
    assert other is not home
    other.begin_leg(2)
    assert policy.pick(workers, huge) is home


# --- configuration ---


def test_each_policy_has_its_name_and_picks() -> None:
    workers = [make_worker(name) for name in "ab"]
    for name, make in POLICIES.items():
        assert make(Random(1)).pick(workers, asking(name)) in workers


@pytest.mark.parametrize(
    ("settings", "prefill", "decode"),
    [
        ({}, LeastLoaded, LeastLoaded),
        ({"policy": "round_robin"}, RoundRobin, RoundRobin),
        ({"prefill_policy": "prefix_affinity"}, PrefixAffinity, LeastLoaded),
        ({"policy": "power_of_two", "decode_policy": "queue_depth"}, PowerOfTwo, QueueDepth),
    ],
)
def test_a_role_may_have_a_policy_of_its_own(settings: dict[str, str], prefill: type, decode: type) -> None:
    selectors = make_selectors(RouterConfig.model_validate(settings), Random(1))
    assert type(selectors[WorkerRole.PREFILL]._policy) is prefill
    assert type(selectors[WorkerRole.DECODE]._policy) is decode
