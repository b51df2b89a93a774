"""Prompts that wait at a real prefill worker: a short one does not wait for the long ones that came before it."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import legs
from tests.e2e.test_unequal_tp import prompt_of
from tests.stack import Stack

pytestmark = pytest.mark.usefixtures("nothing_is_left")

NUM_LONG = 3
# So that they are there when the short one comes; a step takes longer.
HEAD_START_S = 0.2
LONG, SHORT = 3000, 40  # three steps each of the stack's budget, and a small part of one


def ended_s(url: str, prompt: list[int]) -> float:
    """When its first token came."""
    legs.tokens_of(legs.send(url, legs.GREEDY | {"prompt": prompt, "max_tokens": 1}))
    return time.monotonic()


def test_a_short_prompt_overtakes_long_ones(stack: Stack) -> None:
    url = stack.worker("prefill")
    with ThreadPoolExecutor(NUM_LONG + 1) as pool:
        long = [pool.submit(ended_s, url, prompt_of(9000 + number, LONG)) for number in range(NUM_LONG)]
        time.sleep(HEAD_START_S)
        short = pool.submit(ended_s, url, prompt_of(9100, SHORT))
        later = [one.result() > short.result() for one in long]
    assert sum(later) >= NUM_LONG - 1, "it came last but was to be computed with the next step"
