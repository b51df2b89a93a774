"""Inputs are rotated until what a call read has left the L2."""

import pytest

from bench.kernels.case import Bench, num_sets

L2 = 60_000_000


@pytest.mark.parametrize(("read_bytes", "sets"), [(1, 8), (L2, 4), (3 * L2, 2), (5 * L2, 1)])
def test_small_inputs_take_more_turns(read_bytes: int, sets: int) -> None:
    assert num_sets(Bench("", L2), read_bytes) == sets
