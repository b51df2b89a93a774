"""Blocks go back once: when every reader is done on every rank, or soon after a drop."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.held_blocks import DRAIN_LIMIT_S, EARLY_NOTES_LIMIT, HeldBlocks
from tests.unit.kv_transfer.factories import Clock


def finished(blocks: HeldBlocks) -> list[str]:
    return [held.request_id for held in blocks.take_finished()]


def holding(num_readers: int = 1, clock: Clock | None = None) -> HeldBlocks:
    blocks = HeldBlocks(clock or Clock())
    blocks.hold("r", "h", num_readers, 5, 17)
    return blocks


def test_what_is_given_back_says_which_lease_ends() -> None:
    blocks = holding()
    blocks.note_done("h", "reader")
    [held] = blocks.take_finished()
    assert (held.request_id, held.handoff_id, held.slot, held.serial) == ("r", "h", 5, 17)
    assert finished(blocks) == []
    assert len(blocks) == 0


def test_a_reader_that_tells_twice_is_one_reader() -> None:
    blocks = holding(num_readers=2)
    blocks.note_done("h", "choice-0")
    blocks.note_done("h", "choice-0")
    assert finished(blocks) == []
    blocks.note_done("h", "choice-1")
    assert finished(blocks) == ["r"]


def test_a_rank_that_tells_twice_is_one_rank() -> None:
    blocks = holding()
    for _ in range(3):
        blocks.note_done("h", "reader", 0, 2)
    assert finished(blocks) == []
    blocks.note_done("h", "reader", 1, 2)
    assert finished(blocks) == ["r"]


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_blocks_wait_for_each_rank_of_each_reader_in_any_order(
    num_readers: int, num_ranks: int, data: st.DataObject
) -> None:
    *first, last = data.draw(st.permutations(list(product(range(num_readers), range(num_ranks)))))
    again = data.draw(st.lists(st.sampled_from(first), max_size=5)) if first else []
    notes = [*first, *again, last]
    held_from = data.draw(st.integers(0, len(notes) - 1))
    blocks = HeldBlocks(Clock())
    for number, (reader, rank) in enumerate(notes):
        if number == held_from:
            blocks.hold("r", "h", num_readers, 0, 1)
        assert finished(blocks) == []
        blocks.note_done("h", f"choice-{reader}", rank, num_ranks)
    assert finished(blocks) == ["r"]


def test_notes_that_overtake_their_hold_count() -> None:
    blocks = HeldBlocks(Clock())
    blocks.note_begin("h", "reader")
    blocks.note_done("h", "reader")
    blocks.hold("r", "h", 1, 5, 17)
    assert finished(blocks) == ["r"]


def test_a_reader_that_needs_nothing_is_done_for_all_its_ranks() -> None:
    blocks = holding()
    blocks.note_done("h", "reader", 1, 2)
    blocks.note_done("h", "reader")  # as the side channel says it, for a request of two ranks
    assert finished(blocks) == ["r"]


def test_a_reader_that_needs_nothing_stays_done_when_a_rank_s_note_comes_late() -> None:
    blocks = holding(num_readers=2)
    blocks.note_done("h", "choice-0")
    blocks.note_done("h", "choice-0", 0, 2)
    blocks.note_done("h", "choice-1")
    assert finished(blocks) == ["r"]


def test_a_dropped_hold_that_nobody_reads_goes_back_at_once_and_only_that_one() -> None:
    blocks = holding()
    blocks.hold("r2", "h2", 1, 6, 18)
    blocks.drop(["r"])
    assert finished(blocks) == ["r"]
    assert len(blocks) == 1


@pytest.mark.parametrize("is_early", [False, True])
def test_a_drop_waits_for_a_reader_that_has_begun(is_early: bool) -> None:
    blocks = HeldBlocks(Clock()) if is_early else holding()
    blocks.note_begin("h", "reader")
    if is_early:
        blocks.hold("r", "h", 1, 5, 17)
    blocks.drop(["r"])
    assert finished(blocks) == []
    blocks.note_done("h", "reader")
    assert finished(blocks) == ["r"]


def test_a_drop_waits_until_the_last_rank_of_a_reader_is_done() -> None:
    blocks = holding()
    blocks.note_begin("h", "reader")
    blocks.drop(["r"])
    blocks.note_done("h", "reader", 0, 2)
    assert finished(blocks) == []
    blocks.note_done("h", "reader", 1, 2)
    assert finished(blocks) == ["r"]


def test_a_drop_waits_for_no_reader_longer_than_the_drain_limit() -> None:
    clock = Clock()
    blocks = holding(clock=clock)
    blocks.note_begin("h", "reader")
    clock.now += 60
    blocks.drop(["r"])
    assert finished(blocks) == []
    clock.now += DRAIN_LIMIT_S * 0.9
    blocks.drop(["r"])  # again: the time does not start anew
    assert finished(blocks) == []
    clock.now += DRAIN_LIMIT_S * 0.1
    assert finished(blocks) == ["r"]


def test_a_dropped_hold_with_one_reader_done_and_one_never_come_goes_back() -> None:
    blocks = holding(num_readers=2)
    blocks.note_begin("h", "choice-0")
    blocks.note_done("h", "choice-0")
    blocks.drop(["r"])
    assert finished(blocks) == ["r"]


def test_a_drop_of_blocks_that_were_read_meanwhile_or_never_held_does_nothing() -> None:
    blocks = holding()
    blocks.note_done("h", "reader")
    assert finished(blocks) == ["r"]
    blocks.drop(["r", "never held"])
    assert finished(blocks) == []


def test_revoked_blocks_are_never_given_back_and_no_others_are_forgotten() -> None:
    blocks = holding()
    blocks.hold("r2", "h2", 1, 6, 18)
    blocks.forget([17, 99])
    assert len(blocks) == 1
    blocks.drop(["r"])
    blocks.note_done("h", "reader")
    blocks.note_done("h2", "reader")
    assert finished(blocks) == ["r2"]


def test_notes_without_a_hold_do_not_pile_up() -> None:
    blocks = HeldBlocks(Clock())
    for number in range(EARLY_NOTES_LIMIT + 5):
        blocks.note_done(f"h{number}", "reader")
    blocks.hold("old", "h0", 1, 0, 1)
    blocks.hold("new", f"h{EARLY_NOTES_LIMIT}", 1, 1, 2)
    assert finished(blocks) == ["new"]
