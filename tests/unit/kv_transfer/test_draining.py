"""Reads that were given up: their blocks stay pinned until nothing can arrive in them any more."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kv_transfer.agent import Read, ReadState
from kv_transfer.draining import Draining
from kv_transfer.pins import Pins
from kv_transfer.step import DrainNews
from tests.architecture.tree import ROOT

ENGINE, OTHER = "prefill-0-life1", "prefill-1-life1"


class Scene:
    def __init__(self) -> None:
        self.states: dict[int, ReadState] = {}
        self.released: list[int] = []
        self.ended: list[str] = []
        self.draining = Draining(lambda read: self.states[read.handle], lambda read: self.released.append(read.handle))

    def give_up(self, handle: int, request_id: str = "req", engine_id: str = ENGINE) -> None:
        self.states[handle] = ReadState.PENDING
        self.draining.add(request_id, engine_id, Read(handle, 1), lambda: self.ended.append(request_id))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_given_up_read_is_pinned_until_nixl_says_that_it_has_ended(scene: Scene) -> None:
    scene.give_up(1)
    scene.draining.look()
    assert scene.draining.take_news() == (Counter(req=1), Counter())
    assert scene.draining.is_under_way(ENGINE)
    assert not scene.draining.is_under_way(OTHER)
    scene.states[1] = ReadState.DONE
    scene.draining.look()
    assert scene.draining.take_news() == (Counter(), Counter(req=1))
    assert (scene.released, scene.ended, len(scene.draining)) == ([1], ["req"], 0)


def test_a_lost_connection_ends_a_read_and_another_error_does_not(scene: Scene) -> None:
    scene.give_up(1, "lost")
    scene.give_up(2, "failed")
    scene.states |= {1: ReadState.LOST, 2: ReadState.FAILED}
    scene.draining.look()
    scene.draining.look()
    assert scene.draining.take_news()[1] == Counter(lost=1)
    assert scene.released == [1, 2], "each handle once"
    assert not scene.draining.is_under_way(ENGINE), "nothing more is known of it, so later reads may go on"
    scene.draining.forget(OTHER)
    assert len(scene.draining) == 1
    scene.draining.forget(ENGINE)
    assert scene.draining.take_news()[1] == Counter(failed=1)


def test_an_engine_that_is_gone_does_not_end_what_is_under_way(scene: Scene) -> None:
    scene.give_up(1)
    scene.draining.forget(ENGINE)
    assert scene.draining.take_news()[1] == Counter()


class Pool:
    """What is used of vLLM's block pool."""

    def __init__(self) -> None:
        self.blocks: Sequence[Any] = [SimpleNamespace(block_id=i, ref_cnt=1) for i in range(9)]

    def touch(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1

    @property
    def counts(self) -> list[int]:
        return [block.ref_cnt for block in self.blocks]


def test_blocks_are_taken_once_and_given_back_when_the_last_rank_s_read_has_ended() -> None:
    pool, pins = Pool(), Pins()
    pins.pool = pool
    pins.note(DrainNews(Counter(req=1), Counter()), lambda _: [4, 7])
    pins.note(DrainNews(Counter(req=2), Counter()), lambda _: [4, 7])
    assert (pool.counts, len(pins)) == ([1, 1, 1, 1, 2, 1, 1, 2, 1], 1)
    pins.note(DrainNews(Counter(), Counter(req=2)), lambda _: [])
    assert len(pins) == 1
    pins.note(DrainNews(Counter(other=1), Counter(req=1, other=1)), lambda _: [0])
    assert (pool.counts, len(pins)) == ([1] * 9, 0)


def test_news_of_several_ranks_add_up() -> None:
    both = DrainNews(Counter(a=1), Counter()).aggregate(DrainNews(Counter(a=1, b=2), Counter(a=1)))
    assert both == DrainNews(Counter(a=2, b=2), Counter(a=1))


def test_rows_that_land_late_land_in_pinned_blocks_only() -> None:
    """A peer that hangs for longer than the time-out and then moves on, over TCP with the real NIXL."""
    script = [sys.executable, "-m", "tests.unit.kv_transfer.late_rows"]
    run = subprocess.run(
        script, cwd=ROOT, env=os.environ | {"UCX_TLS": "tcp"}, capture_output=True, timeout=60, check=True
    )
    seen = json.loads(run.stdout.splitlines()[-1])
    assert seen == {
        "ended before the time-out": [],
        "ended": ["req"],
        "failed": ["req"],
        "pinned": {"req": 1},
        "drained": {},
        "meanwhile": ["meanwhile"],
        "landed": True,
        "drained later": {"req": 1},
        "landed after": False,
        "again": [["again"], []],
        "right": True,
    }
