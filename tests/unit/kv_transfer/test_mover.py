"""One thread a rank moves rows and gives blocks back; the engine's own thread never waits, and learns of its death."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kv_transfer.agent import KVAgent, Read, ReadState
from kv_transfer.notes import Note
from kv_transfer.step import StepMetadata
from tests.unit.kv_transfer.factories import HANDOFF_ID, log_lines, wait_for
from tests.unit.kv_transfer.ranks import SERIAL, SLOT, Rank, hold, orders, pull, taken

ENGINE = "prefill-0-life1"


class SlowAgent(KVAgent):
    """Calls a read under way until the test lets it end."""

    may_end: threading.Event
    may_post: threading.Event
    posted_by: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.may_end, self.may_post = threading.Event(), threading.Event()
        self.may_end.set()
        self.may_post.set()
        self.posted_by = 0

    def read(self, *args: Any, **kwargs: Any) -> Read:
        self.posted_by = threading.get_ident()
        self.may_post.wait(30)
        return super().read(*args, **kwargs)

    def state(self, read: Read) -> ReadState:
        return super().state(read) if self.may_end.is_set() else ReadState.PENDING


class BrokenAgent(KVAgent):
    """Fails where no single request is at fault."""

    is_broken = False

    def notes(self) -> list[bytes]:
        if self.is_broken:
            raise RuntimeError("UCX is lost")
        return super().notes()


Starter = Callable[..., Rank]


@pytest.fixture
def start() -> Iterator[Starter]:
    """Starts ranks and stops them again."""
    started: list[Rank] = []

    def make(name: str, **options: Any) -> Rank:
        rank = Rank(f"mover-{name}", **options)
        rank.mover.start()
        started.append(rank)
        return rank

    yield make
    for rank in reversed(started):
        if isinstance(rank.agent, SlowAgent):
            rank.agent.may_end.set()
            rank.agent.may_post.set()
        rank.mover.stop()


def slow(rank: Rank) -> SlowAgent:
    assert isinstance(rank.agent, SlowAgent)
    return rank.agent


def test_rows_cross_and_the_source_gives_its_blocks_back(start: Starter) -> None:
    prefill, decode = start("prefill"), start("decode")
    prefill.fill()
    prefill.mover.give(hold())
    decode.mover.give(orders(ENGINE, prefill, pulls=[pull(ENGINE, [4, 8], [11, 2])]))
    moved = taken(decode)
    assert (moved.received, moved.failed, moved.given_back) == ({"req"}, set(), set())
    assert np.array_equal(decode.rows[[4, 8]], prefill.rows[[11, 2]])
    moved = taken(prefill)
    assert (moved.received, moved.given_back) == (set(), {"p"})
    assert prefill.fence.words[SLOT] == SERIAL, "nobody believes rows that are given back"
    assert decode.stats.data["blocks"] == 2


def test_what_has_ended_is_told_once_and_not_waited_for_without_wish(start: Starter) -> None:
    prefill, decode = start("prefill"), start("decode")
    began = time.monotonic()
    assert not decode.mover.take()
    assert time.monotonic() - began < 1
    prefill.mover.give(hold())
    decode.mover.give(orders(ENGINE, prefill, pulls=[pull(ENGINE, [4], [11])]))
    assert taken(decode).received == {"req"}
    assert not decode.mover.take(0.05)


def test_the_engine_s_thread_posts_nothing_and_never_waits_for_a_posting(start: Starter) -> None:
    prefill, decode = start("prefill"), start("decode", wrap=SlowAgent)
    slow(decode).may_post.clear()
    prefill.mover.give(hold())
    began = time.monotonic()
    decode.mover.give(orders(ENGINE, prefill, pulls=[pull(ENGINE, [4], [11])]))
    assert not decode.mover.take()
    assert time.monotonic() - began < 1
    wait_for(lambda: slow(decode).posted_by)
    assert slow(decode).posted_by != threading.get_ident()
    assert not decode.mover.take()
    slow(decode).may_post.set()
    assert taken(decode).received == {"req"}


def test_dropped_blocks_stay_while_somebody_reads_them_and_go_when_that_is_over(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_transfer.held_blocks.DRAIN_LIMIT_S", 60.0)
    prefill, decode = start("prefill"), start("decode", wrap=SlowAgent)
    prefill.fill()
    sentinel = prefill.rows.copy()
    slow(decode).may_end.clear()
    prefill.mover.give(hold())
    decode.mover.give(orders(ENGINE, prefill, pulls=[pull(ENGINE, [4, 8], [11, 2])]))
    wait_for(lambda: being_read(prefill))
    prefill.mover.give(StepMetadata(drops=["p"]))
    assert not prefill.mover.take(0.3)
    slow(decode).may_end.set()
    assert taken(decode).failed == set()
    assert taken(prefill).given_back == {"p"}
    assert prefill.fence.words[SLOT] == SERIAL
    prefill.rows[:] = 0  # the next prompt
    assert np.array_equal(decode.rows[[4, 8]], sentinel[[11, 2]])


def being_read(prefill: Rank) -> bool:
    return any(held.is_being_read for held in list(prefill.mover._held._by_handoff.values()))


def test_a_reader_that_takes_too_long_keeps_no_blocks_and_believes_no_rows(start: Starter) -> None:
    prefill, decode = start("prefill"), start("decode", wrap=SlowAgent)
    slow(decode).may_end.clear()
    prefill.mover.give(hold())
    decode.mover.give(orders(ENGINE, prefill, pulls=[pull(ENGINE, [4], [11])]))
    wait_for(lambda: being_read(prefill))
    prefill.mover.give(StepMetadata(drops=["p"]))
    assert taken(prefill).given_back == {"p"}
    prefill.rows[:] = 7  # the next prompt
    slow(decode).may_end.set()
    assert taken(decode).failed == {"req"}
    assert decode.stats.data["expired_reads"] == 1


def test_blocks_that_nobody_reads_are_given_back_as_soon_as_they_are_dropped(start: Starter) -> None:
    prefill = start("prefill")
    prefill.mover.give(hold("p"))
    assert not prefill.mover.take(0.05)
    prefill.mover.give(StepMetadata(drops=["p"]))
    assert taken(prefill).given_back == {"p"}
    assert prefill.fence.words[SLOT] == SERIAL


def test_a_reader_that_let_go_by_the_side_channel_counts_like_one_that_has_read(start: Starter) -> None:
    prefill, decode = start("prefill"), start("decode")
    prefill.mover.give(hold(num_readers=2))
    decode.mover.give(orders(ENGINE, prefill, pulls=[pull(ENGINE, [4], [11], request_id="choice-0")]))
    taken(decode)
    assert not prefill.mover.take(0.05)
    prefill.mover.give(StepMetadata(notes=[Note(HANDOFF_ID, "choice-1")]))
    assert taken(prefill).given_back == {"p"}


def test_all_choices_read_one_handoff(start: Starter) -> None:
    prefill, decode = start("prefill"), start("decode")
    prefill.fill()
    prefill.mover.give(hold(num_readers=3))
    pulls = [pull(ENGINE, [number], [11], request_id=f"choice-{number}") for number in range(3)]
    decode.mover.give(orders(ENGINE, prefill, pulls=pulls))
    received: set[str] = set()
    while len(received) < 3:
        received |= taken(decode).received
    assert taken(prefill).given_back == {"p"}
    assert all(np.array_equal(decode.rows[number], prefill.rows[11]) for number in range(3))


def test_a_note_that_can_t_be_read_ends_nothing(start: Starter) -> None:
    prefill, decode = start("prefill"), Rank("mover-noisy")
    decode.meet(ENGINE, prefill)
    prefill.mover.give(hold())
    [source] = decode.peers.sources(ENGINE)
    with log_lines() as warnings:
        for garbage in (b"\xff\xfe", b"hello", b"d " * 40, b"\0" * 3000):
            decode.agent.notify(source.reader.peer, garbage)
        deadline = time.monotonic() + 20
        while len(warnings) < 4:
            assert time.monotonic() < deadline
            decode.listen()  # which sends what still waits
    decode.agent.notify(source.reader.peer, Note(HANDOFF_ID, "req").encode())
    assert taken(prefill).given_back == {"p"}
    decode.close()


def test_reads_of_an_engine_that_is_fenced_are_cut(start: Starter) -> None:
    prefill, decode = start("prefill"), start("decode", wrap=SlowAgent, read_timeout_s=1000.0)
    slow(decode).may_end.clear()
    decode.mover.give(orders(ENGINE, prefill, pulls=[pull(ENGINE, [4], [11])]))
    assert not decode.mover.take(0.05)
    decode.mover.give(StepMetadata(fenced=[ENGINE], pulls=[pull(ENGINE, [5], [11], request_id="late")]))
    failed: set[str] = set()
    while len(failed) < 2:
        failed |= taken(decode).failed
    assert failed == {"req", "late"}


def test_the_death_of_the_mover_is_raised_to_the_engine_also_while_it_waits(start: Starter) -> None:
    rank = start("broken", wrap=BrokenAgent)
    assert not rank.mover.take()
    assert isinstance(rank.agent, BrokenAgent)
    rank.agent.is_broken = True
    rank.mover.give(StepMetadata())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="thread has died") as death:
            rank.mover.take(20)
        assert "UCX is lost" in str(death.value.__cause__)


def test_a_mover_with_nothing_under_way_takes_hardly_any_cpu_time(start: Starter) -> None:
    prefill, decode = (start(name, linger_s=0.05) for name in ("prefill", "decode"))
    prefill.mover.give(hold())
    decode.mover.give(orders(ENGINE, prefill, pulls=[pull(ENGINE, [4], [11])]))
    taken(decode)
    taken(prefill)
    time.sleep(0.1)
    threads = [rank.mover._thread for rank in (prefill, decode)]
    began = [cpu_s(thread) for thread in threads]
    time.sleep(0.5)
    spent = [cpu_s(thread) - s for thread, s in zip(threads, began, strict=True)]
    assert max(spent) <= 0.03, "a look now and then, for peers that want to connect"


def test_a_mover_that_holds_blocks_sleeps_most_of_the_time(start: Starter) -> None:
    prefill = start("prefill")
    prefill.mover.give(hold())
    time.sleep(0.05)
    began = cpu_s(prefill.mover._thread)
    time.sleep(0.5)
    assert cpu_s(prefill.mover._thread) - began < 0.25


def cpu_s(thread: threading.Thread) -> float:
    """CPU seconds of one thread, in hundredths."""
    with open(f"/proc/self/task/{thread.native_id}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_after_the_stop_peers_are_let_go_and_nothing_is_registered(start: Starter) -> None:
    prefill, decode = start("prefill"), start("decode")
    prefill.mover.give(hold())
    decode.mover.give(orders(ENGINE, prefill, pulls=[pull(ENGINE, [4], [11])]))
    taken(decode)
    decode.mover.stop()
    assert not decode.mover._thread.is_alive()
    assert decode.agent._registered == []
    assert decode.peers._sources == {}
