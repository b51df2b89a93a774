"""The machine's own pauses are what work takes beyond its usual time, on the core that was named."""

import os

import pytest

from bench.router.pauses import probe, summary


def test_what_is_beyond_the_median_is_a_pause() -> None:
    assert summary([0.0005] * 98 + [0.0025, 0.0045]) == {"p50": 0.0, "p99": 2.0, "max": 4.0}


def test_even_work_has_none() -> None:
    assert summary([0.0005] * 10) == {"p50": 0.0, "p99": 0.0, "max": 0.0}


def test_nothing_timed_is_no_result() -> None:
    with pytest.raises(ValueError, match="nothing was timed"):
        summary([])


def test_a_probe_leaves_the_process_on_the_cores_that_it_had() -> None:
    allowed = os.sched_getaffinity(0)
    found = probe(min(allowed), 0.05)
    assert found["p50"] <= found["p99"] <= found["max"]
    assert os.sched_getaffinity(0) == allowed
