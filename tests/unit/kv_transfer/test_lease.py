"""Leases end by being read, released or run out, each exactly once."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kv_transfer.lease import EARLY_RELEASE_LIMIT, EARLY_RELEASE_TTL_S, DropReason, LeaseTable


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_held_lease_is_due_only_after_its_deadline_and_only_once() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    assert table.grant("h", "r", 30.0)
    clock.now += 29.9
    assert table.take_due() == []
    clock.now += 0.1
    assert table.take_due() == [("r", DropReason.EXPIRED)]
    assert table.take_due() == []
    assert len(table) == 1, "blocks are held until the workers confirm"
    table.end("r")
    assert len(table) == 0


def test_a_release_makes_the_lease_due_at_once_and_may_be_repeated() -> None:
    table = LeaseTable(Clock())
    table.grant("h", "r", 30.0)
    assert table.release("h")
    assert table.release("h")
    assert table.take_due() == [("r", DropReason.RELEASED)]
    table.end("r")
    assert not table.release("h")


def test_a_read_lease_is_never_due() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    table.grant("h", "r", 30.0)
    table.end("r")
    clock.now += 31
    assert table.take_due() == []


def test_a_release_that_overtakes_the_grant_prevents_it() -> None:
    table = LeaseTable(Clock())
    assert not table.release("h")
    assert not table.grant("h", "r", 30.0)
    assert len(table) == 0


def test_an_early_release_is_forgotten_after_its_time() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    table.release("h")
    clock.now += EARLY_RELEASE_TTL_S + 1
    table.release("other")  # forgetting happens when one is added
    assert table.grant("h", "r", 30.0)


def test_early_releases_are_bounded_and_the_oldest_goes_first() -> None:
    table = LeaseTable(Clock())
    for i in range(EARLY_RELEASE_LIMIT + 1):
        table.release(str(i))
    assert table.grant("0", "r0", 30.0)
    assert not table.grant("1", "r1", 30.0)


def test_a_handoff_id_in_use_is_not_granted_twice() -> None:
    table = LeaseTable(Clock())
    assert table.grant("h", "r1", 30.0)
    assert not table.grant("h", "r2", 30.0)
    assert len(table) == 1


class LeaseLife(RuleBasedStateMachine):
    """Whatever the order of events, a granted lease ends once and an ended one never comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.table = LeaseTable(self.clock)
        self.live: set[int] = set()
        self.due: set[int] = set()
        self.used = 0

    @rule(lease_s=st.floats(0.1, 60))
    def grant(self, lease_s: float) -> None:
        assert self.table.grant(f"h{self.used}", f"r{self.used}", lease_s)
        self.live.add(self.used)
        self.used += 1

    @rule(i=st.integers(0, 30))
    def release(self, i: int) -> None:
        if i < self.used:
            assert self.table.release(f"h{i}") == (i in self.live)

    @rule(i=st.integers(0, 30))
    def read(self, i: int) -> None:
        self.table.end(f"r{i}")
        self.live.discard(i)
        self.due.discard(i)

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        for request_id, _ in self.table.take_due():
            number = int(request_id[1:])
            assert number in self.live
            assert number not in self.due, "handed out twice"
            self.due.add(number)

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.table) == len(self.live)


LeaseLife.TestCase.settings = settings(max_examples=60, deadline=None)
TestLeaseLife = LeaseLife.TestCase
