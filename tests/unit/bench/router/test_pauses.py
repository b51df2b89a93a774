"""The machine's own pauses are what work takes beyond its usual time, on the core that was named."""

import os

import pytest

from bench.router.pauses import excess_s, probe


def test_what_is_beyond_the_median_is_a_pause_and_what_is_below_is_none() -> None:
    assert excess_s([0.25, 0.5, 0.5, 2.5, 0.5]) == [0.0, 0.0, 0.0, 2.0, 0.0]


def test_nothing_timed_is_no_result() -> None:
    with pytest.raises(ValueError, match="no median"):
        excess_s([])


def test_a_probe_leaves_the_process_on_the_cores_that_it_had() -> None:
    allowed = os.sched_getaffinity(0)
    found = probe(min(allowed), 0.05)
    assert 0.0 == found["p50"] <= found["p99"] <= found["max"]
    assert os.sched_getaffinity(0) == allowed
