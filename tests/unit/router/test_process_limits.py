"""Each of several processes gets its part of the limits, and the whole is within them but for the rounding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import RouterConfig
from router.process_limits import DIVIDED, part_of
from router.respawn import FIRST_DELAY_S, MAX_DELAY_S, MAX_EARLY_ENDS, STEADY_S, Respawn


def config_of(processes: int, limit: int) -> RouterConfig:
    limits = dict.fromkeys(DIVIDED, limit)
    return RouterConfig.model_validate(
        {"processes": processes, "metrics_port": 9000, "api_keys": ["k"], "decode": ["http://a:1"], **limits}
    )


@given(st.integers(1, 256), st.integers(1, 1 << 24))
def test_the_parts_hold_the_whole_and_at_most_one_more_each(processes: int, limit: int) -> None:
    part = part_of(config_of(processes, limit))
    for name in DIVIDED:
        assert limit <= getattr(part, name) * processes < limit + processes


def test_no_limit_stays_none() -> None:
    whole = RouterConfig(
        processes=4, metrics_port=9000, prefill_tokens_per_worker=0, decode_tokens_per_worker=0, max_queued_tokens=0
    )
    part = part_of(whole)
    assert [getattr(part, name) for name in DIVIDED] == [0, 0, 0, None]


def test_static_workers_are_the_parents_and_all_else_is_as_configured() -> None:
    whole = config_of(2, 8)
    part = part_of(whole)
    assert (part.prefill, part.decode) == ((), ())
    changed = {name for name in RouterConfig.model_fields if getattr(part, name) != getattr(whole, name)}
    assert changed == {*DIVIDED, "decode"}


def test_one_that_keeps_ending_at_once_is_given_up_after_growing_waits() -> None:
    respawn = Respawn()
    delays = [respawn.delay_s(0.0) for _ in range(MAX_EARLY_ENDS + 1)]
    assert delays[0] == FIRST_DELAY_S
    waits = [delay for delay in delays if delay is not None]
    assert waits == sorted(waits)
    assert waits[-1] == MAX_DELAY_S
    assert delays.index(None) == MAX_EARLY_ENDS


@pytest.mark.parametrize("num_early", [0, MAX_EARLY_ENDS])
def test_one_that_has_lived_is_followed_soon_and_what_was_before_is_forgiven(num_early: int) -> None:
    respawn = Respawn()
    for _ in range(num_early):
        respawn.delay_s(STEADY_S - 0.1)
    assert respawn.delay_s(STEADY_S) == FIRST_DELAY_S
    assert respawn.delay_s(0.0) == FIRST_DELAY_S
