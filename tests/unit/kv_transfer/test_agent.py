"""Rows and fence words cross through the real NIXL: right bytes, one descriptor a piece, nothing else touched."""

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_transfer.agent import KVAgent, Read, ReadState, RowReader, RowRegion, WordRegion
from kv_transfer.plan import Piece

ROW_BYTES = 4608
NUM_WORDS = 8


class Side:
    """An agent with rows and words; its progress is left to NIXL where a source's thread may be busy elsewhere."""

    def __init__(self, name: str, num_blocks: int, *, enable_progress_thread: bool = False) -> None:
        self.rows = np.zeros((num_blocks, ROW_BYTES), dtype=np.uint8)
        self.words, self.scratch = (np.zeros(NUM_WORDS, dtype=np.uint64) for _ in range(2))
        self.agent = KVAgent(name, ["UCX"], enable_progress_thread=enable_progress_thread)
        self.agent.register_words(self.words, self.scratch)
        self.region = RowRegion(self.rows.ctypes.data, ROW_BYTES, num_blocks, 0, "DRAM")
        self.metadata = self.agent.register(self.region)

    def word_region(self) -> WordRegion:
        return WordRegion(self.words.ctypes.data, NUM_WORDS)


class Pair(NamedTuple):
    prefill: Side
    decode: Side
    reader: RowReader

    def wait(self, read: Read) -> ReadState:
        deadline = time.monotonic() + 20
        while (state := self.decode.agent.state(read)) is ReadState.PENDING and time.monotonic() < deadline:
            pass
        return state


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    prefill, decode = Side("agent-prefill", 12, enable_progress_thread=True), Side("agent-decode", 9)
    whole = [Piece(0, 0, ROW_BYTES)]
    reader = decode.agent.connect(prefill.metadata, prefill.region, whole, prefill.word_region())
    yield Pair(prefill, decode, reader)
    decode.agent.disconnect(reader)
    decode.agent.close()
    prefill.agent.close()


def fill(rows: np.ndarray) -> None:
    rows[:] = np.random.default_rng(0).integers(1, 256, rows.shape, dtype=np.uint8)


def test_scattered_blocks_cross_with_one_descriptor_each_and_touch_no_other(pair: Pair) -> None:
    fill(pair.prefill.rows)
    pair.decode.rows[:] = 0
    theirs, mine = [11, 2, 7], [4, 8, 1]
    read = pair.decode.agent.read(pair.reader, mine, theirs, b"note")
    assert pair.wait(read) is ReadState.DONE
    telemetry = pair.decode.agent.finish(read)
    assert (telemetry.num_posted, telemetry.num_descriptors, telemetry.num_bytes) == (3, 3, 3 * ROW_BYTES)
    assert telemetry.post_s >= 0
    assert telemetry.transfer_s > 0
    assert np.array_equal(pair.decode.rows[mine], pair.prefill.rows[theirs])
    assert not pair.decode.rows[[b for b in range(9) if b not in mine]].any()


BLOCKS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 11)), min_size=1, max_size=9, unique_by=lambda pair: pair[0]
)


@settings(max_examples=40)
@given(BLOCKS)
def test_blocks_named_in_any_order_arrive_in_their_places(pair: Pair, blocks: list[tuple[int, int]]) -> None:
    mine, theirs = (list(side) for side in zip(*blocks, strict=True))
    fill(pair.prefill.rows)
    pair.decode.rows[:] = 0
    read = pair.decode.agent.read(pair.reader, mine, theirs)
    assert pair.wait(read) is ReadState.DONE
    pair.decode.agent.finish(read)
    assert np.array_equal(pair.decode.rows[mine], pair.prefill.rows[theirs])
    assert not pair.decode.rows[[b for b in range(9) if b not in mine]].any()


@pytest.mark.parametrize("theirs", [[5, 6, 7, 8], [8, 7, 6, 5]])
def test_a_run_of_blocks_is_joined_whether_it_rises_or_falls(pair: Pair, theirs: list[int]) -> None:
    mine = [block - 5 for block in theirs]
    pair.decode.rows[:] = 0
    read = pair.decode.agent.read(pair.reader, mine, theirs)
    assert pair.wait(read) is ReadState.DONE
    assert pair.decode.agent.finish(read).num_descriptors == 1
    assert np.array_equal(pair.decode.rows[mine], pair.prefill.rows[theirs])


def test_adjacent_blocks_need_no_more_than_one_descriptor_each(pair: Pair) -> None:
    read = pair.decode.agent.read(pair.reader, [0, 1, 2, 3], [5, 6, 7, 8])
    assert pair.wait(read) is ReadState.DONE
    assert pair.decode.agent.finish(read).num_descriptors <= 4
    assert np.array_equal(pair.decode.rows[:4], pair.prefill.rows[5:9])


def test_the_source_hears_of_reads_that_carry_a_note_and_of_notes_without_a_read(pair: Pair) -> None:
    pair.prefill.agent.notes()
    for note in (b"", b"read done"):
        read = pair.decode.agent.read(pair.reader, [0], [0], note)
        assert pair.wait(read) is ReadState.DONE
        pair.decode.agent.finish(read)
    pair.decode.agent.notify(pair.reader.peer, b"nothing to read")
    heard: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(heard) < 2 and time.monotonic() < deadline:
        heard += pair.prefill.agent.notes()
    assert sorted(heard) == [b"nothing to read", b"read done"]


def test_pieces_of_a_row_are_read_block_by_block(pair: Pair) -> None:
    fill(pair.prefill.rows)
    half = ROW_BYTES // 2
    agent = pair.decode.agent
    halves = [Piece(half, 0, half), Piece(0, half, half)]
    reader = agent.connect(pair.prefill.metadata, pair.prefill.region, halves)
    read = agent.read(reader, [3, 5], [9, 1])
    assert pair.wait(read) is ReadState.DONE
    assert agent.finish(read).num_posted == 4
    for mine, theirs in ((3, 9), (5, 1)):
        assert np.array_equal(pair.decode.rows[mine, :half], pair.prefill.rows[theirs, half:])
        assert np.array_equal(pair.decode.rows[mine, half:], pair.prefill.rows[theirs, :half])


def test_a_fence_word_arrives_in_the_scratch_word_that_was_named(pair: Pair) -> None:
    pair.prefill.words[:] = np.arange(100, 100 + NUM_WORDS)
    pair.prefill.words[6] = (1 << 63) + 5
    pair.decode.scratch[:] = 0
    read = pair.decode.agent.read_word(pair.reader, 6, 2, b"note")
    assert pair.wait(read) is ReadState.DONE
    assert pair.decode.agent.finish(read).num_bytes == 8
    assert pair.decode.scratch.tolist() == [0, 0, (1 << 63) + 5, 0, 0, 0, 0, 0]
    assert pair.prefill.words[6] == (1 << 63) + 5


def test_a_word_shows_what_prefill_wrote_last(pair: Pair) -> None:
    for value in (7, 8):
        pair.prefill.words[3] = value
        read = pair.decode.agent.read_word(pair.reader, 3, 0, b"note")
        assert pair.wait(read) is ReadState.DONE
        pair.decode.agent.finish(read)
        assert pair.decode.scratch[0] == value


def test_an_abandoned_read_leaves_the_agent_usable(pair: Pair) -> None:
    fill(pair.prefill.rows)
    abandoned = pair.decode.agent.read(pair.reader, [0], [0])
    pair.wait(abandoned)
    pair.decode.agent.abandon(abandoned)
    read = pair.decode.agent.read(pair.reader, [1], [1])
    assert pair.wait(read) is ReadState.DONE
    assert np.array_equal(pair.decode.rows[1], pair.prefill.rows[1])


def test_a_read_whose_state_nixl_does_not_know_has_failed(pair: Pair) -> None:
    assert pair.decode.agent.state(Read(None, 1)) is ReadState.FAILED


def test_an_agent_leaves_the_thread_s_affinity_as_it_is() -> None:
    before = os.sched_getaffinity(0)
    Side("agent-affinity", 1).agent.close()
    assert os.sched_getaffinity(0) == before
