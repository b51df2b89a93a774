"""What crosses in a measurement: the cases, and the blocks drawn for a round."""

import numpy as np
import pytest

from bench.transfer.case import PATTERNS, Case, Pattern, cases, draw

POOL = 40


def drawn(pattern: Pattern, num_blocks: int = 32, num_requests: int = 16) -> tuple[np.ndarray, np.ndarray]:
    requests = draw(Case(pattern, num_blocks, num_requests), POOL, np.random.default_rng(0))
    assert len(requests) == num_requests
    return np.concatenate([r.mine for r in requests]), np.concatenate([r.theirs for r in requests])


def test_every_combination_is_measured_but_those_that_say_nothing() -> None:
    found = list(cases(PATTERNS, [32, 1], [16, 1]))
    assert found[0] == Case("scattered", 1, 1)
    assert len(found) == 1 + 2 * len(PATTERNS)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_block_is_written_twice_and_all_are_in_the_pool(pattern: Pattern) -> None:
    for side in drawn(pattern):
        assert len(set(side.tolist())) == 32
        assert side.min() >= 0
        assert side.max() < POOL


@pytest.mark.parametrize(("pattern", "step"), [("adjacent", 1), ("descending", -1)])
def test_a_run_stays_a_run_over_all_requests(pattern: Pattern, step: int) -> None:
    for side in drawn(pattern):
        assert set(np.diff(side).tolist()) == {step}


def test_scattered_blocks_have_few_neighbours() -> None:
    mine, theirs = drawn("scattered")
    assert np.count_nonzero((np.diff(mine) == 1) & (np.diff(theirs) == 1)) < 4


def test_a_pool_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="too small for 41"):
        draw(Case("scattered", 41, 1), POOL, np.random.default_rng(0))
