"""Notes survive the way between ranks; anything else is no note, and no error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.notes import Note, decode

READERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(READERS, st.integers(0, 63), st.integers(1, 64), st.booleans())
def test_a_note_survives_the_way(reader: str, rank: int, num_ranks: int, is_done: bool) -> None:
    note = Note("ab" * 16, reader, rank, num_ranks, is_done)
    assert decode(note.encode()) == (note if rank < num_ranks else None)


def test_a_reader_s_name_may_hold_spaces() -> None:
    note = Note("ab" * 16, "cmpl-1 of some client", 1, 2, False)
    assert decode(note.encode()) == note


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"d",
        b"d h 0 1",
        b"x h 0 1 reader",
        b"d h zero 1 reader",
        b"d h 0 one reader",
        b"d h 1 1 reader",
        b"d h -1 1 reader",
        b"d h 0 0 reader",
        b"d h 0 1 \xff",
        b"d h 0 " + b"9" * 5000 + b" reader",
    ],
)
def test_what_is_no_note_is_taken_for_none(payload: bytes) -> None:
    assert decode(payload) is None


@given(st.binary(max_size=80))
def test_no_bytes_make_it_raise(payload: bytes) -> None:
    decode(payload)
