"""A core that is kept awake has a loop of the lowest priority, for as long as somebody measures."""

import os
from pathlib import Path

import pytest

from bench.router.accounting import with_descendants
from bench.router.awake import kept_awake


def _children() -> list[int]:
    return with_descendants(os.getpid())[1:]


def test_inside_each_core_has_a_loop_that_gives_way_to_all_else_and_outside_none() -> None:
    core, before = min(os.sched_getaffinity(0)), set(_children())
    with kept_awake([core], os.getpid()):
        [pid] = set(_children()) - before
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        assert os.sched_getaffinity(pid) == {core}
    assert not Path(f"/proc/{pid}").exists()


def test_a_core_that_is_not_there_is_told() -> None:
    with pytest.raises(RuntimeError, match="kept awake"), kept_awake([4095], os.getpid()):
        pass
