"""What `usage` tells is true for the pair: the prompt's length, and which part of it prefill had in its cache."""

import random
import time
from typing import Any

from tests import legs
from tests.stack import MODEL, Stack

BLOCK = 128
EXTERNAL = "external_kv_transfer"


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    # Prompts that no other test has: what is in the caches is what these tests are about.
    return random.Random(f"usage {seed}").choices(range(300, 500), k=num_tokens)


def usage(stack: Stack, prompt: list[int], *, is_stream: bool, **options: Any) -> dict[str, Any]:
    wish: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 3, "temperature": 0, **options}
    if not is_stream:
        answer = stack.client.completions.create(**wish)
    else:
        chunks = list(stack.client.completions.create(**wish, stream=True, stream_options={"include_usage": True}))
        [answer] = [chunk for chunk in chunks if chunk.usage is not None]
    assert answer.usage is not None
    return answer.usage.model_dump()


def hits(found: dict[str, Any]) -> int:
    return (found.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def test_prefix_hits_are_prefills_own_streamed_or_not(stack: Stack) -> None:
    """Case 1: a cold prompt has none, a warm one its whole cached blocks, and never more than the prompt is long."""
    for seed, is_stream in ((1, False), (2, True)):
        shared = prompt_of(3 * BLOCK, seed)
        cold = usage(stack, shared + prompt_of(40, seed + 10), is_stream=is_stream)
        warm = usage(stack, shared + prompt_of(50, seed + 20), is_stream=is_stream)
        assert (cold["prompt_tokens"], hits(cold)) == (3 * BLOCK + 40, 0)
        assert (warm["prompt_tokens"], hits(warm)) == (3 * BLOCK + 50, 3 * BLOCK)
        again = usage(stack, shared + prompt_of(50, seed + 20), is_stream=not is_stream)
        assert hits(again) == 3 * BLOCK < again["prompt_tokens"]


def test_what_crosses_is_not_counted_as_computed(stack: Stack) -> None:
    """Case 38: of a handoff's tokens decode computes one at most; they are no throughput of its own.

    Only the counter by source keeps them apart: vLLM's other ones add what was transferred to what was computed.
    """

    def counted(role: str) -> dict[str, float]:
        found = legs.samples(stack.worker(role))
        names = {source: f"vllm:prompt_tokens_by_source_total:{source}" for source in ("local_compute", EXTERNAL)}
        return {source: found[name] for source, name in names.items()}

    before = {role: counted(role) for role in ("prefill", "decode")}
    usage(stack, prompt_of(1000, 5), is_stream=False)
    now = {role: counted(role) for role in ("prefill", "decode")}
    assert now["prefill"]["local_compute"] - before["prefill"]["local_compute"] == 1000
    assert now["decode"]["local_compute"] - before["decode"]["local_compute"] <= 1
    assert now["decode"][EXTERNAL] - before["decode"][EXTERNAL] >= 999


def test_time_to_first_token_is_what_a_stopwatch_says(stack: Stack) -> None:
    """Case 38: the router's, from arrival to the first byte over both legs; an engine's own tells half of it."""

    def counted() -> tuple[float, float]:
        found = stack.metrics("router")
        return found["tandem_router_ttft_seconds_sum"], found["tandem_router_ttft_seconds_count"]

    (sum_s, count), began_s = counted(), time.monotonic()
    wish: dict[str, Any] = {"model": MODEL, "prompt": prompt_of(1500, 6), "max_tokens": 2}
    stream = iter(stack.client.completions.create(**wish, stream=True))
    next(stream)
    stopwatch_s = time.monotonic() - began_s
    assert list(stream)
    deadline_s = time.monotonic() + 5
    while (found := counted())[1] == count and time.monotonic() < deadline_s:
        time.sleep(0.02)  # it is counted as the router's side ends, which may be after the client's
    now_s, now = found
    assert now - count == 1
    # Beside what the router saw there are only the client's own work and the loopback.
    assert 0.5 * stopwatch_s - 0.1 <= now_s - sum_s <= stopwatch_s
