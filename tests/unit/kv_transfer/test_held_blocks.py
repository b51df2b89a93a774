"""Blocks go back when all readers are done or the hold is dropped, once."""

from kv_transfer.held_blocks import EARLY_NOTES_LIMIT, HeldBlocks


def held() -> HeldBlocks:
    return HeldBlocks(lambda: 0.0)


def test_blocks_wait_for_every_reader_and_no_reader_counts_twice() -> None:
    blocks = held()
    blocks.hold("r", "h", 2)
    blocks.note_reader("h", "choice-0")
    blocks.note_reader("h", "choice-0")
    assert blocks.take_finished() == set()
    blocks.note_reader("h", "choice-1")
    assert blocks.take_finished() == {"r"}
    assert blocks.take_finished() == set()
    assert len(blocks) == 0


def test_a_note_that_overtakes_its_hold_counts() -> None:
    blocks = held()
    blocks.note_reader("h", "reader")
    blocks.hold("r", "h", 1)
    assert blocks.take_finished() == {"r"}


def test_a_dropped_hold_goes_back_unread_and_only_that_one() -> None:
    blocks = held()
    blocks.hold("r1", "h1", 1)
    blocks.hold("r2", "h2", 1)
    blocks.drop(["r1"])
    assert blocks.take_finished() == {"r1"}
    assert len(blocks) == 1


def test_a_drop_of_blocks_that_were_read_meanwhile_does_nothing() -> None:
    blocks = held()
    blocks.hold("r", "h", 1)
    blocks.note_reader("h", "reader")
    assert blocks.take_finished() == {"r"}
    blocks.drop(["r"])
    assert blocks.take_finished() == set()


def test_notes_without_a_hold_do_not_pile_up() -> None:
    blocks = held()
    for i in range(EARLY_NOTES_LIMIT + 5):
        blocks.note_reader(f"h{i}", "reader")
    blocks.hold("old", "h0", 1)
    blocks.hold("new", f"h{EARLY_NOTES_LIMIT}", 1)
    assert blocks.take_finished() == {"new"}


def test_quiet_time_is_that_of_the_youngest_hold() -> None:
    now = 0.0
    blocks = HeldBlocks(lambda: now)
    assert blocks.quiet_s() == 0
    blocks.hold("r1", "h1", 1)
    now = 3.0
    blocks.hold("r2", "h2", 1)
    now = 5.0
    assert blocks.quiet_s() == 2
    blocks.drop(["r1"])
    assert blocks.quiet_s() == 0, "a drop must not wait"
