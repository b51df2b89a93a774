"""What a request costs is told from its bytes and its limit, and is a usable number whatever the client wrote."""

import pytest

from router.context import Plan
from router.endpoints import Route
from router.token_estimate import BYTES_PER_TOKEN, MAX_OUTPUT_TOKENS, UNLIMITED_OUTPUT_TOKENS, estimate_tokens


def estimate(num_bytes: int, *, max_tokens: int | None = 10, num_choices: int = 1) -> tuple[int, int]:
    return estimate_tokens(num_bytes, Plan("nano", False, num_choices, max_tokens, Route.PREFILL_DECODE, "handoff"))


def test_prefill_costs_the_prompt_and_decode_the_prompt_and_the_output() -> None:
    assert estimate(100 * BYTES_PER_TOKEN) == (101, 111)


def test_every_choice_is_an_output() -> None:
    assert estimate(0, num_choices=4) == (1, 41)


@pytest.mark.parametrize(
    ("max_tokens", "output"), [(None, UNLIMITED_OUTPUT_TOKENS), (0, 0), (10**400, MAX_OUTPUT_TOKENS)]
)
def test_a_limit_that_is_missing_or_absurd_is_replaced(max_tokens: int | None, output: int) -> None:
    assert estimate(0, max_tokens=max_tokens) == (1, 1 + output)
