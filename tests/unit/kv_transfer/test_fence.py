"""A reader believes its rows only while its own lease lives, whatever becomes of the slot later."""

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.fence import WORD_BYTES, Fence, FenceSlots, is_live


def test_a_lease_is_live_until_it_is_ended() -> None:
    fence, slots = Fence(4), FenceSlots(4)
    place = slots.take()
    assert place is not None
    slot, serial = place
    assert is_live(int(fence.words[slot]), serial)
    fence.end(slot, serial)
    assert not is_live(int(fence.words[slot]), serial)


def test_words_are_as_wide_as_peers_read_them() -> None:
    fence = Fence(4)
    assert fence.words.itemsize == WORD_BYTES
    assert fence.words.nbytes == 4 * WORD_BYTES


def test_the_end_of_one_lease_says_nothing_of_another_slot() -> None:
    fence = Fence(3)
    fence.end(1, 7)
    assert fence.words.tolist() == [0, 7, 0]


def test_ending_an_earlier_lease_late_does_not_open_a_later_one_s_end() -> None:
    fence = Fence(1)
    fence.end(0, 9)
    fence.end(0, 5)
    assert not is_live(int(fence.words[0]), 9)


def test_slots_are_given_out_once_and_rest_for_as_long_as_possible() -> None:
    slots = FenceSlots(3)
    taken = [slots.take() for _ in range(4)]
    assert taken == [(0, 1), (1, 2), (2, 3), None]
    slots.give_back(1)
    slots.give_back(0)
    assert [slots.take(), slots.take(), slots.take()] == [(1, 4), (0, 5), None]


def test_the_greatest_serial_fits_a_word() -> None:
    fence = Fence(1)
    fence.end(0, (1 << 63) - 1)
    assert not is_live(int(fence.words[0]), (1 << 63) - 1)


@given(st.lists(st.integers(0, 5), max_size=60))
def test_a_reader_of_an_ended_lease_never_sees_it_live_again(ends: list[int]) -> None:
    fence, slots = Fence(3), FenceSlots(3)
    living: list[tuple[int, int]] = []
    over: list[tuple[int, int]] = []
    for choice in ends:
        if (place := slots.take()) is not None:
            living.append(place)
        if choice < len(living):
            slot, serial = living.pop(choice)
            fence.end(slot, serial)
            slots.give_back(slot)
            over.append((slot, serial))
        assert all(is_live(int(fence.words[slot]), serial) for slot, serial in living)
        assert not any(is_live(int(fence.words[slot]), serial) for slot, serial in over)
