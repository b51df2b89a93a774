"""Rows cross through the real NIXL: right bytes, one descriptor a block, nothing else touched."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from kv_transfer.agent import KVAgent, Read, ReadState, RowReader, RowRegion
from kv_transfer.plan import Piece

ROW_BYTES = 4608
LINGER_S = 0.2


@dataclass
class Side:
    agent: KVAgent
    rows: np.ndarray
    region: RowRegion
    metadata: bytes


def side(name: str, num_blocks: int) -> Side:
    rows = np.zeros((num_blocks, ROW_BYTES), dtype=np.uint8)
    agent = KVAgent(name, ["UCX"], linger_s=LINGER_S)
    region = RowRegion(rows.ctypes.data, ROW_BYTES, num_blocks, 0, "DRAM")
    return Side(agent, rows, region, agent.register(region))


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Side, Side, RowReader]]:
    prefill, decode = side("test-prefill", 12), side("test-decode", 9)
    prefill.agent.set_active(True)
    reader = decode.agent.connect(prefill.metadata, prefill.region, [Piece(0, 0, ROW_BYTES)])
    yield prefill, decode, reader
    decode.agent.disconnect(reader)
    decode.agent.close()
    prefill.agent.close()


def wait(agent: KVAgent, read: Read) -> ReadState:
    deadline = time.monotonic() + 10
    while (state := agent.state(read)) is ReadState.PENDING and time.monotonic() < deadline:
        pass
    return state


def test_scattered_blocks_cross_with_one_descriptor_each(pair: tuple[Side, Side, RowReader]) -> None:
    prefill, decode, reader = pair
    prefill.rows[:] = np.random.default_rng(0).integers(0, 256, prefill.rows.shape, dtype=np.uint8)
    decode.rows[:] = 0
    theirs, mine = [11, 2, 7], [4, 8, 1]
    read = decode.agent.read(reader, mine, theirs, b"handoff reader")
    assert wait(decode.agent, read) is ReadState.DONE
    telemetry = decode.agent.finish(read)
    assert telemetry.num_posted == 3
    assert telemetry.num_descriptors == 3
    assert telemetry.num_bytes == 3 * ROW_BYTES
    assert np.array_equal(decode.rows[mine], prefill.rows[theirs])
    untouched = [b for b in range(9) if b not in mine]
    assert not decode.rows[untouched].any()


def test_adjacent_blocks_need_no_more_than_one_descriptor_each(pair: tuple[Side, Side, RowReader]) -> None:
    prefill, decode, reader = pair
    read = decode.agent.read(reader, [0, 1, 2, 3], [5, 6, 7, 8], b"")
    assert wait(decode.agent, read) is ReadState.DONE
    assert decode.agent.finish(read).num_descriptors <= 4
    assert np.array_equal(decode.rows[:4], prefill.rows[5:9])


def test_the_source_hears_when_a_read_is_done_and_when_nobody_will_read(pair: tuple[Side, Side, RowReader]) -> None:
    prefill, decode, reader = pair
    prefill.agent.notes()
    read = decode.agent.read(reader, [0], [0], b"handoff-a reader-1")
    assert wait(decode.agent, read) is ReadState.DONE
    decode.agent.finish(read)
    decode.agent.notify(reader.peer, b"handoff-b reader-2")
    heard: list[bytes] = []
    deadline = time.monotonic() + 10
    while len(heard) < 2 and time.monotonic() < deadline:
        heard += prefill.agent.notes()
    assert sorted(heard) == [b"handoff-a reader-1", b"handoff-b reader-2"]


def test_pieces_of_a_row_are_read_block_by_block(pair: tuple[Side, Side, RowReader]) -> None:
    prefill, decode, _ = pair
    half = ROW_BYTES // 2
    reader = decode.agent.connect(prefill.metadata, prefill.region, [Piece(half, 0, half), Piece(0, half, half)])
    read = decode.agent.read(reader, [3, 5], [9, 1], b"")
    assert wait(decode.agent, read) is ReadState.DONE
    assert decode.agent.finish(read).num_posted == 4
    for mine, theirs in ((3, 9), (5, 1)):
        assert np.array_equal(decode.rows[mine, :half], prefill.rows[theirs, half:])
        assert np.array_equal(decode.rows[mine, half:], prefill.rows[theirs, :half])


def test_a_read_ends_while_its_sources_thread_is_busy_elsewhere(pair: tuple[Side, Side, RowReader]) -> None:
    prefill, decode, reader = pair
    read = decode.agent.read(reader, [2], [10], b"")
    assert wait(decode.agent, read) is ReadState.DONE  # nothing here calls the prefill agent
    decode.agent.finish(read)
    assert np.array_equal(decode.rows[2], prefill.rows[10])


def test_an_agent_with_nothing_under_way_takes_no_cpu_time(pair: tuple[Side, Side, RowReader]) -> None:
    for agent in (pair[0].agent, pair[1].agent):
        agent.set_active(False)
    time.sleep(LINGER_S + 0.1)
    began = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - began < 0.1, "NIXL's own progress thread would take all of it"
