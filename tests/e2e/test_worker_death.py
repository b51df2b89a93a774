"""A worker that dies is started again by itself, and the service is what it was. Last: it restarts the shared stack."""

import random
import time

import psutil
from openai import APIStatusError

from tests.stack import MODEL, Stack

BACK_LIMIT_S = 120.0


def process_of(stack: Stack, module: str) -> psutil.Process:
    """The worker's API process, which is the one that has an engine as its child."""
    found = [
        process
        for process in psutil.Process(stack.launcher.pid).children(recursive=True)
        if f"-m {module}" in " ".join(process.cmdline()) and "deploy" not in " ".join(process.cmdline()[:4])
    ]
    return found[-1]


def greedy(stack: Stack, seed: int) -> list[int]:
    prompt = random.Random(seed).choices(range(300, 500), k=400)
    extra = {"return_token_ids": True}
    answer = stack.client.completions.create(model=MODEL, prompt=prompt, max_tokens=6, temperature=0, extra_body=extra)
    tokens: list[int] = answer.choices[0].model_extra["token_ids"]  # type: ignore[index]
    return tokens


def status_of(stack: Stack) -> int:
    """Of one request: its HTTP status, 200 too if the launcher was faster than we."""
    try:
        greedy(stack, 1)
    except APIStatusError as refusal:
        return refusal.status_code
    return 200


def is_ready(stack: Stack) -> bool:
    return stack.http.get(f"{stack.url}/ready").status_code == 200


def test_a_killed_pair_comes_back_and_gives_the_same_tokens(stack: Stack) -> None:
    before, generations = greedy(stack, 1), stack.generations()
    engine_of_prefill = max(process_of(stack, "prefill_worker").children(), key=lambda p: p.memory_info().rss)
    decode = process_of(stack, "decode_worker")
    engine_of_prefill.kill()
    decode.kill()

    began = time.monotonic()
    assert status_of(stack) in (200, 502, 503)
    assert time.monotonic() - began < 30, "a dead worker is an error, not a wait"

    while stack.generations().keys() != generations.keys() or any(
        generations[worker] == generation for worker, generation in stack.generations().items()
    ):
        assert time.monotonic() - began < BACK_LIMIT_S, stack.generations()
        time.sleep(0.5)
    while not is_ready(stack):
        assert time.monotonic() - began < BACK_LIMIT_S
        time.sleep(0.5)
    assert greedy(stack, 1) == before
    assert stack.num_leases("prefill") == 0
