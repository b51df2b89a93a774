"""Whatever the order of events, leases behave as a plain list of deadlines does."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kv_transfer.lease import DropReason, LeaseState, LeaseTable
from tests.unit.kv_transfer.factories import Clock

NUM_SLOTS = 4
NUMBERS = st.integers(0, 6)


@dataclass
class Twin:
    """What a lease is, said without heaps, slots and locks."""

    lease_s: float
    deadline_s: float
    is_released: bool = False
    is_dropping: bool = False


class LeaseLife(RuleBasedStateMachine):
    """A granted lease ends once, at the right time, and an ended one never comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(0.0)
        self.table = LeaseTable(self.clock, NUM_SLOTS)
        self.twins: dict[int, Twin] = {}
        self.used: set[int] = set()  # granted once, or released before that
        self.last_serial = 0
        self.slots: dict[int, int] = {}

    def live(self, number: int) -> int:
        """A number whose lease lives, if any does."""
        return sorted(self.twins)[number % len(self.twins)] if self.twins else number

    @rule(number=NUMBERS, lease_s=st.integers(1, 60))
    def grant(self, number: int, lease_s: int) -> None:
        lease = self.table.grant(f"h{number}", f"r{number}", lease_s)
        assert (lease is not None) == (number not in self.used and len(self.twins) < NUM_SLOTS)
        if lease is not None:
            assert lease.serial > self.last_serial
            assert lease.slot not in self.slots.values()
            self.last_serial, self.slots[number] = lease.serial, lease.slot
            self.twins[number] = Twin(lease_s, self.clock.now + lease_s)
            self.used.add(number)

    @rule(number=NUMBERS, is_live=st.booleans())
    def release(self, number: int, is_live: bool) -> None:
        number = self.live(number) if is_live else number
        assert self.table.release(f"h{number}") == (number in self.twins)
        self.used.add(number)
        if number in self.twins:
            self.twins[number].is_released = True

    @rule(numbers=st.lists(NUMBERS, max_size=5))
    def renew(self, numbers: list[int]) -> None:
        alive = [n for n in numbers if n in self.twins and not self.twins[n].is_dropping]
        assert self.table.renew(f"h{n}" for n in numbers) == [f"h{n}" for n in numbers if n not in alive]
        for number in alive:
            self.twins[number].deadline_s = self.clock.now + self.twins[number].lease_s

    @rule(number=NUMBERS, is_revoked=st.booleans())
    def end(self, number: int, is_revoked: bool) -> None:
        number = self.live(number)
        if is_revoked:
            assert (self.table.revoke(f"r{number}") is not None) == (number in self.twins)
        else:
            self.table.end(f"r{number}")
        self.twins.pop(number, None)
        self.slots.pop(number, None)

    @rule(seconds=st.integers(0, 40))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds
        given = {lease.request_id: reason for lease, reason in self.table.take_due()}
        expected: dict[str, DropReason] = {}
        for number, twin in self.twins.items():
            if not twin.is_dropping and (twin.is_released or twin.deadline_s <= self.clock.now):
                expected[f"r{number}"] = DropReason.RELEASED if twin.is_released else DropReason.EXPIRED
                twin.is_dropping = True
        assert given == expected

    @invariant()
    def counts_agree(self) -> None:
        num_dropping = sum(twin.is_dropping for twin in self.twins.values())
        assert len(self.table) == len(self.twins)
        assert self.table.num_in_state() == {
            LeaseState.HELD: len(self.twins) - num_dropping,
            LeaseState.DROPPING: num_dropping,
        }


LeaseLife.TestCase.settings = settings(max_examples=80, stateful_step_count=30)
TestLeaseLife = LeaseLife.TestCase
