"""A lease ends by being read, released, revoked or run out, once; its id and its place never come back as they were."""

import pytest

from kv_transfer.lease import MEMORY_LIMIT, MEMORY_TTL_S, DropReason, Lease, LeaseState, LeaseTable
from tests.unit.kv_transfer.factories import Clock


def granted(table: LeaseTable, handoff_id: str = "h", request_id: str = "r", lease_s: float = 30.0) -> Lease:
    lease = table.grant(handoff_id, request_id, lease_s)
    assert lease is not None
    return lease


def due(table: LeaseTable) -> list[tuple[str, DropReason]]:
    return [(lease.request_id, reason) for lease, reason in table.take_due()]


def in_state(table: LeaseTable) -> tuple[int, int]:
    counts = table.num_in_state()
    assert set(counts) == set(LeaseState), "a state without leases is counted too"
    return counts[LeaseState.HELD], counts[LeaseState.DROPPING]


def test_a_lease_is_due_at_its_deadline_once_and_counted_until_the_ranks_confirm() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    granted(table)
    clock.now += 29.9
    assert due(table) == []
    assert in_state(table) == (1, 0)
    clock.now += 0.1
    assert due(table) == [("r", DropReason.EXPIRED)]
    assert due(table) == []
    assert in_state(table) == (0, 1)
    assert len(table) == 1
    table.end("r")
    assert in_state(table) == (0, 0)
    assert len(table) == 0


def test_a_release_makes_a_lease_due_at_once_and_may_be_repeated() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    granted(table)
    assert table.release("h")
    assert table.release("h")
    assert due(table) == [("r", DropReason.RELEASED)]
    assert table.release("h"), "it is still counted, so it is still found"
    clock.now += 31
    assert due(table) == [], "released is not expired as well"
    table.end("r")
    assert not table.release("h")


def test_a_lease_that_was_read_is_never_due() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    granted(table)
    table.end("r")
    clock.now += 31
    assert due(table) == []


@pytest.mark.parametrize("how", ["read", "revoked"])
def test_a_lease_that_ended_before_its_release_was_seen_is_not_due_any_more(how: str) -> None:
    table = LeaseTable(Clock())
    granted(table)
    table.release("h")
    table.end("r") if how == "read" else table.revoke("r")
    assert due(table) == []


def test_leases_come_due_in_the_order_of_their_deadlines() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    for number, lease_s in enumerate([30.0, 10.0, 20.0]):
        granted(table, f"h{number}", f"r{number}", lease_s)
    clock.now += 31
    assert [request_id for request_id, _ in due(table)] == ["r1", "r2", "r0"]


def test_a_renewal_starts_the_time_anew() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    granted(table, "early", "r1", 10.0)
    granted(table, "late", "r2", 10.0)
    clock.now += 9
    assert table.renew(["early"]) == []
    clock.now += 1
    assert due(table) == [("r2", DropReason.EXPIRED)]
    clock.now += 8.9
    assert due(table) == []
    clock.now += 0.1
    assert due(table) == [("r1", DropReason.EXPIRED)]


def test_a_renewal_names_the_leases_that_are_over_and_does_not_bring_them_back() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    for name in ("held", "expired", "read"):
        granted(table, name, f"r-{name}", 10.0 if name == "expired" else 30.0)
    clock.now += 10
    assert due(table) == [("r-expired", DropReason.EXPIRED)]
    table.end("r-read")
    assert table.renew(["held", "expired", "read", "never granted"]) == ["expired", "read", "never granted"]
    assert in_state(table) == (1, 1)


def test_a_renewal_after_the_release_does_not_undo_it() -> None:
    table = LeaseTable(Clock())
    granted(table)
    table.release("h")
    table.renew(["h"])
    assert due(table) == [("r", DropReason.RELEASED)]


def test_a_renewal_that_comes_at_the_deadline_but_before_it_is_looked_at_counts() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    granted(table)
    clock.now += 30
    assert table.renew(["h"]) == []
    assert due(table) == []


def test_a_release_that_overtakes_the_grant_prevents_it() -> None:
    table = LeaseTable(Clock())
    assert not table.release("h")
    assert table.grant("h", "r", 30.0) is None
    assert len(table) == 0
    granted(table, "another", "r")


def test_an_early_release_is_forgotten_after_its_time() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    table.release("h")
    clock.now += MEMORY_TTL_S + 1
    table.release("other")  # forgetting happens when one is added
    granted(table)


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    table = LeaseTable(Clock())
    for number in range(MEMORY_LIMIT + 1):
        table.release(str(number))
    granted(table, "0", "r0")
    assert table.grant("1", "r1", 30.0) is None


def test_a_handoff_id_is_granted_once_whether_its_lease_lives_or_is_over() -> None:
    table = LeaseTable(Clock())
    granted(table, "h", "r1")
    assert table.grant("h", "r2", 30.0) is None
    assert len(table) == 1
    table.end("r1")
    assert table.grant("h", "r3", 30.0) is None
    assert len(table) == 0


def test_a_revoked_lease_is_gone_at_once_and_says_where_its_fence_is() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    lease = granted(table)
    assert table.revoke("r") is lease
    assert len(table) == 0
    assert table.revoke("r") is None
    assert table.revoke("never granted") is None
    clock.now += 31
    assert due(table) == []
    assert table.renew(["h"]) == ["h"]


def test_without_a_free_slot_nothing_is_granted_and_a_freed_one_has_a_greater_serial() -> None:
    table = LeaseTable(Clock(), num_slots=2)
    first, second = granted(table, "h1", "r1"), granted(table, "h2", "r2")
    assert {first.slot, second.slot} == {0, 1}
    assert table.grant("h3", "r3", 30.0) is None
    assert len(table) == 2
    table.end("r1")
    third = granted(table, "h4", "r4")
    assert third.slot == first.slot
    assert third.serial > second.serial > first.serial > 0


def test_a_slot_stays_taken_until_the_ranks_have_confirmed_the_drop() -> None:
    table = LeaseTable(Clock(), num_slots=1)
    granted(table)
    table.release("h")
    table.take_due()
    assert table.grant("h2", "r2", 30.0) is None
    table.end("r")
    granted(table, "h3", "r3")
