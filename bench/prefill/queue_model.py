"""A model of a prefill worker's queue: TTFT by order and by ``max_age_s`` (``python -m bench.prefill.queue_model``).

Not a measurement: steps take a fixed time and a time for each token, prompts arrive by chance, and which of them are in
a step is decided by the served order (``vllm_engine.ttft_order``) in the way of vLLM's scheduler. KV space is no limit.
"""

import math
import random
import statistics
from dataclasses import dataclass

from vllm_engine.ttft_order import Key, chunk_limit, order_key

# A worker, and its prompts: 5 in 100 are long and bring more than half of the tokens.
BUDGET, STEP_S, TOKENS_PER_S, MAX_RUNNING = 8192, 0.005, 30_000.0, 16
SHORT_MEDIAN, SHORT_SIGMA, MAX_SHORT = 1000, 1.0, 8192
LONG, LONG_SHARE = (16_384, 65_536), 0.05
DURATION_S, SEEDS = 300.0, range(5)
LOADS = (0.7, 0.9, 1.1)
FCFS = 0.0
AGES_S = (FCFS, 0.5, 1.0, 2.0, 5.0, 10.0, math.inf)


@dataclass(slots=True, eq=False)
class Prompt:
    """One request; ``ttft_s`` is set when its last token has been computed."""

    arrival_s: float
    num_tokens: int
    is_long: bool
    left: int
    ttft_s: float = math.nan

    def key(self, now_s: float, max_age_s: float) -> Key:
        return order_key(priority=0, tokens_left=self.left, arrival_s=self.arrival_s, now_s=now_s, max_age_s=max_age_s)


def arrivals(load: float, seed: int) -> list[Prompt]:
    """Prompts by time; ``load`` is their tokens over what the worker computes meanwhile."""
    draw = random.Random(seed)
    short_mean = SHORT_MEDIAN * math.exp(SHORT_SIGMA**2 / 2)
    mean = (1 - LONG_SHARE) * short_mean + LONG_SHARE * sum(LONG) / 2
    rate = load * BUDGET / (STEP_S + BUDGET / TOKENS_PER_S) / mean
    prompts: list[Prompt] = []
    now_s = draw.expovariate(rate)
    while now_s < DURATION_S:
        is_long = draw.random() < LONG_SHARE
        short = draw.lognormvariate(math.log(SHORT_MEDIAN), SHORT_SIGMA)
        size = draw.randint(*LONG) if is_long else min(MAX_SHORT, max(1, int(short)))
        prompts.append(Prompt(now_s, size, is_long, size))
        now_s += draw.expovariate(rate)
    return prompts


def step(running: list[Prompt], waiting: list[Prompt], now_s: float, max_age_s: float) -> int:
    """Choose and compute one step's tokens, in place; returns their number."""
    waiting.sort(key=lambda prompt: prompt.key(now_s, max_age_s))
    limit = None
    if max_age_s != FCFS:
        running.sort(key=lambda prompt: prompt.key(now_s, max_age_s))
        longest = max((prompt.left for prompt in running), default=0)
        places = waiting[: MAX_RUNNING - len(running)]
        limit = chunk_limit(
            running_left=[prompt.left for prompt in running],
            shorter_left=[prompt.left for prompt in places if prompt.left < longest],
            budget=BUDGET,
        )
    budget = BUDGET
    for prompt in running:
        budget -= _compute(prompt, budget, limit)
    while waiting and budget and len(running) < MAX_RUNNING:
        running.append(waiting.pop(0))
        budget -= _compute(running[-1], budget, limit)
    return BUDGET - budget


def _compute(prompt: Prompt, budget: int, limit: int | None) -> int:
    tokens = min(prompt.left, budget, budget if limit is None else limit)
    prompt.left -= tokens
    return tokens


def simulate(prompts: list[Prompt], max_age_s: float) -> list[Prompt]:
    """The same prompts with their TTFT."""
    running: list[Prompt] = []
    waiting: list[Prompt] = []
    coming = prompts[::-1]
    now_s = 0.0
    while coming or waiting or running:
        if not waiting and not running:
            now_s = max(now_s, coming[-1].arrival_s)
        while coming and coming[-1].arrival_s <= now_s:
            waiting.append(coming.pop())
        now_s += STEP_S + step(running, waiting, now_s, max_age_s) / TOKENS_PER_S
        for prompt in running:
            if not prompt.left:
                prompt.ttft_s = now_s - prompt.arrival_s
        running = [prompt for prompt in running if prompt.left]
    return prompts


def figures(load: float, max_age_s: float) -> list[float]:
    """Seconds: mean and p95 of all, p95 of short prompts, mean and maximum of long ones."""
    done = [prompt for seed in SEEDS for prompt in simulate(arrivals(load, seed), max_age_s)]
    every = [prompt.ttft_s for prompt in done]
    short = [prompt.ttft_s for prompt in done if not prompt.is_long]
    long = [prompt.ttft_s for prompt in done if prompt.is_long]
    return [statistics.fmean(every), _p95(every), _p95(short), statistics.fmean(long), max(long)]


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def main() -> None:
    print("| load | max_age_s | mean | p95 | p95 short | mean long | max long |\n|---|---|---|---|---|---|---|")
    for load in LOADS:
        for max_age_s in AGES_S:
            name = "fcfs" if max_age_s == FCFS else f"{max_age_s:g}"
            print(f"| {load} | {name} | " + " | ".join(f"{value:.2f}" for value in figures(load, max_age_s)) + " |")


if __name__ == "__main__":
    main()
