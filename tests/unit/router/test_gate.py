"""A gate keeps to its limit, wakes everyone who fits and nobody else, and loses no token, whatever comes and goes."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.fair_queue import Waiting
from router.gate import UNLIMITED, Gate
from tests.unit.router.factories import ManualClock
from wire.worker import WorkerRole

PER_WORKER = 100
MAX_QUEUED = 300


def make_gate(
    *,
    num_workers: int = 1,
    tokens_per_worker: int = PER_WORKER,
    max_queued_tokens: int = MAX_QUEUED,
    is_optional: bool = False,
    clock: ManualClock | None = None,
) -> Gate:
    gate = Gate(
        WorkerRole.DECODE,
        tokens_per_worker=tokens_per_worker,
        max_queued_tokens=max_queued_tokens,
        is_optional=is_optional,
        clock=clock or ManualClock(),
    )
    gate.set_workers(num_workers)
    return gate


class Client:
    """A request at a gate, as ``router.admission`` acts for one."""

    def __init__(self, gate: Gate, num_tokens: int, *, priority: int = 0, key: str = "") -> None:
        self.gate, self.num_tokens = gate, num_tokens
        self.is_in = self.is_refused = False
        self.waiting = Waiting(num_tokens, priority, key, self._on_turn)
        if gate.may_pass(num_tokens):
            gate.room -= num_tokens
            self.is_in = True
        elif gate.may_wait(num_tokens):
            gate.join(self.waiting)
        else:
            self.is_refused = True

    def _on_turn(self) -> None:
        assert not self.is_in
        self.is_in = True

    def give_back(self) -> None:
        self.gate.room += self.num_tokens
        if self.gate.room < 0:
            self.gate.let_in()

    def end(self) -> None:
        if self.is_in:
            self.give_back()
        elif not self.is_refused:
            self.gate.leave(self.waiting)


def test_what_fits_passes_and_the_rest_waits_its_turn() -> None:
    gate = make_gate()
    first, second, third = (Client(gate, 60) for _ in range(3))
    assert (first.is_in, second.is_in, third.is_in) == (True, False, False)
    first.end()
    assert (second.is_in, third.is_in) == (True, False)


def test_a_small_request_does_not_pass_a_large_one_that_waits() -> None:
    gate = make_gate()
    running, large, small = Client(gate, 60), Client(gate, 90), Client(gate, 10)
    assert not small.is_in
    running.end()
    assert large.is_in
    assert small.is_in


def test_a_request_larger_than_all_the_room_runs_alone() -> None:
    gate = make_gate()
    running, huge, after = Client(gate, 10), Client(gate, 2 * PER_WORKER), Client(gate, 10)
    running.end()
    assert (huge.is_in, after.is_in) == (True, False)
    huge.end()
    assert after.is_in


def test_the_queue_is_bounded_in_tokens_but_has_a_place_for_one_request_of_any_size() -> None:
    gate = make_gate()
    Client(gate, 60)
    assert not Client(gate, 10 * MAX_QUEUED).is_refused
    assert Client(gate, 1).is_refused


def test_with_a_queue_of_no_tokens_nothing_waits() -> None:
    gate = make_gate(max_queued_tokens=0)
    Client(gate, 60)
    assert Client(gate, 60).is_refused


def test_without_a_limit_everything_passes() -> None:
    gate = make_gate(tokens_per_worker=0)
    assert all(Client(gate, UNLIMITED // 1000).is_in for _ in range(10))
    assert gate.limit_tokens == 0


def test_a_worker_that_comes_lets_in_those_who_wait() -> None:
    gate = make_gate()
    clients = [Client(gate, 60) for _ in range(3)]
    gate.set_workers(3)
    assert all(client.is_in for client in clients)


def test_a_worker_that_goes_takes_its_room_along() -> None:
    gate = make_gate(num_workers=2)
    first, second = Client(gate, 100), Client(gate, 60)
    gate.set_workers(1)
    third = Client(gate, 10)
    second.end()
    assert not third.is_in
    first.end()
    assert third.is_in


def test_without_workers_those_who_wait_stay_and_those_who_come_are_not_kept() -> None:
    gate = make_gate()
    running, waiting = Client(gate, 100), Client(gate, 10)
    gate.set_workers(0)
    running.end()
    assert not waiting.is_in
    assert Client(gate, 10).is_in
    gate.set_workers(1)
    assert waiting.is_in


def test_without_workers_of_a_role_that_can_be_done_without_nobody_waits() -> None:
    gate = make_gate(is_optional=True)
    Client(gate, 100)
    waiting = Client(gate, 10)
    gate.set_workers(0)
    assert waiting.is_in


def test_who_leaves_the_head_of_the_queue_lets_the_next_one_in() -> None:
    gate = make_gate()
    Client(gate, 60)
    large, small = Client(gate, 90), Client(gate, 10)
    large.end()
    assert small.is_in


def test_the_time_to_try_again_follows_the_rate_at_which_the_queue_drains() -> None:
    clock = ManualClock()
    gate = make_gate(clock=clock, max_queued_tokens=100_000)
    clients = [Client(gate, 100) for _ in range(41)]
    for client in clients[:10]:
        clock.now_s += 1.0
        client.end()
    # 100 tokens a second leave, 3,000 are left.
    assert gate.retry_after_s() == 30


class GateLife(RuleBasedStateMachine):
    """Requests, workers, priorities, keys and departures in any order, against what must always be true."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = make_gate(num_workers=2)
        self.num_workers = 2
        self.clients: list[Client] = []

    @rule(tokens=st.integers(1, 250), priority=st.integers(-1, 1), key=st.sampled_from("ab"))
    def come(self, tokens: int, priority: int, key: str) -> None:
        num_before = self.gate.num_waiting_tokens
        client = Client(self.gate, tokens, priority=priority, key=key)
        if client.is_refused:
            assert num_before + tokens > MAX_QUEUED
        else:
            self.clients.append(client)

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 1000))
    def go(self, index: int) -> None:
        self.clients.pop(index % len(self.clients)).end()

    @rule(num_workers=st.integers(0, 3))
    def change_workers(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.gate.set_workers(num_workers)

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 1000))
    def start_again(self, index: int) -> None:
        """As after a failed decode: the tokens are given back, and taken anew without asking."""
        client = self.clients[index % len(self.clients)]
        if client.is_in:
            client.give_back()
            self.gate.room -= client.num_tokens

    @invariant()
    def no_token_is_lost_or_counted_twice(self) -> None:
        inside = [client.num_tokens for client in self.clients if client.is_in]
        outside = [client.num_tokens for client in self.clients if not client.is_in]
        assert self.gate.num_in_flight_tokens == sum(inside)
        assert self.gate.num_waiting_tokens == sum(outside)
        assert self.gate.num_waiting == len(outside)

    @invariant()
    def nobody_waits_who_could_go(self) -> None:
        if self.num_workers and self.gate.num_waiting:
            assert self.gate.num_in_flight_tokens > 0
            first = self.gate._queue.first()
            assert first is not None
            assert self.gate.num_in_flight_tokens + first.num_tokens > self.num_workers * PER_WORKER

    @invariant()
    def room_says_whether_the_next_one_may_pass(self) -> None:
        for tokens in (1, 10, 200):
            if tokens <= self.gate.room:
                assert self.gate.may_pass(tokens)
        if self.gate.num_waiting:
            assert self.gate.room < 0
        elif self.num_workers:
            assert self.gate.room == self.num_workers * PER_WORKER - self.gate.num_in_flight_tokens

    def teardown(self) -> None:
        self.gate.set_workers(1)
        # In the order of arrival, so that some get their turn meanwhile.
        for client in self.clients:
            client.end()
        assert (self.gate.num_in_flight_tokens, self.gate.num_waiting, self.gate.room) == (0, 0, PER_WORKER)


TestGateLife: Any = GateLife.TestCase
TestGateLife.settings = settings(max_examples=150, stateful_step_count=40)
