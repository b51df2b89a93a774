"""The queue's model computes every prompt once, in steps of the budget, and by length sooner on the whole."""

import math

import pytest

from bench.prefill.queue_model import BUDGET, FCFS, MAX_RUNNING, STEP_S, TOKENS_PER_S, Prompt, arrivals, simulate, step


@pytest.mark.parametrize("max_age_s", [FCFS, 2.0, math.inf])
def test_every_prompt_is_computed_and_none_faster_than_it_takes(max_age_s: float) -> None:
    for prompt in simulate(arrivals(0.7, seed=1)[:300], max_age_s):
        assert prompt.left == 0
        alone_s = prompt.num_tokens / TOKENS_PER_S + STEP_S * math.ceil(prompt.num_tokens / BUDGET)
        assert prompt.ttft_s >= alone_s - 1e-9


def test_a_step_is_no_longer_than_its_budget_and_leaves_shorter_prompts_a_place() -> None:
    long, short = Prompt(0.0, 50_000, True, 50_000), Prompt(1.0, 500, False, 500)
    running, waiting = [long], [short]
    assert step(running, waiting, 1.0, 2.0) == BUDGET
    assert (long.left, short.left, waiting) == (50_000 - BUDGET + 500, 0, [])


def test_no_more_run_at_once_than_a_worker_holds() -> None:
    waiting = [Prompt(0.0, 1, False, 1) for _ in range(MAX_RUNNING + 5)]
    assert step([], waiting, 0.0, 2.0) == MAX_RUNNING


@pytest.mark.parametrize("seed", range(3))
def test_by_length_the_mean_is_shorter_and_no_long_prompt_takes_much_longer_than_twice(seed: int) -> None:
    in_order, by_length = (simulate(arrivals(0.7, seed), max_age_s) for max_age_s in (FCFS, 2.0))
    assert sum(prompt.ttft_s for prompt in by_length) < 0.7 * sum(prompt.ttft_s for prompt in in_order)
    longest = max(prompt.ttft_s for prompt in in_order)
    assert max(prompt.ttft_s for prompt in by_length) < 2.5 * longest
