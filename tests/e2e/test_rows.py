"""Each KV block crosses once, as one descriptor, and the metrics say how many bytes that was."""

import random
import time

from tests.stack import MODEL, Stack

BLOCK = 128


def complete(stack: Stack, num_tokens: int, seed: int) -> None:
    prompt = random.Random(seed).choices(range(300, 500), k=num_tokens)
    stack.client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, temperature=0)


def moved(stack: Stack) -> dict[str, float]:
    names = ("reads", "blocks", "posted_descriptors", "descriptors", "bytes")
    metrics = stack.metrics("decode")
    return {name: metrics[f"tandem_kv_{name}_total"] for name in names}


def test_a_block_is_one_descriptor_and_one_row(stack: Stack) -> None:
    row_bytes = stack.ask("decode", "/tandem/status").json()["registration"]["row_bytes"]
    for num_tokens, num_blocks in ((5, 1), (128, 1), (129, 2), (1000, 8)):
        before = moved(stack)
        complete(stack, num_tokens, seed=num_tokens + 11)
        delta = {name: value - before[name] for name, value in moved(stack).items()}
        assert delta["reads"] == 1
        assert delta["blocks"] == num_blocks
        assert delta["posted_descriptors"] == num_blocks
        assert 1 <= delta["descriptors"] <= num_blocks
        assert delta["bytes"] == num_blocks * row_bytes


def test_the_row_is_the_sum_of_the_models_pages(stack: Stack) -> None:
    """4 layers: K and V of 4 heads and one index key, 72 bytes each (facts M4), for 128 tokens."""
    row_bytes = stack.ask("decode", "/tandem/status").json()["registration"]["row_bytes"]
    assert row_bytes == 4 * (2 * 4 + 1) * BLOCK * 72


def test_blocks_that_decode_holds_are_not_moved_again(stack: Stack) -> None:
    complete(stack, 1000, seed=99)
    before = moved(stack)
    complete(stack, 1000, seed=99)
    assert moved(stack)["blocks"] - before["blocks"] <= 1, "7 full blocks are cached; only the tail can differ"


def test_the_router_shows_bytes_moved_per_request(stack: Stack) -> None:
    complete(stack, 600, seed=5)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        worker, router = moved(stack), stack.metrics("router")
        if router.get("tandem_router_worker_kv_bytes_total") == worker["bytes"]:  # arrives with a heartbeat
            break
        time.sleep(0.2)
    assert router["tandem_router_worker_kv_bytes_total"] == worker["bytes"] > 0
    assert router["tandem_router_kv_bytes_per_handoff"] > 0
    assert stack.metrics("decode")["tandem_kv_handoff_bytes_count"] > 0


def test_no_lease_is_left_after_the_requests(stack: Stack) -> None:
    complete(stack, 300, seed=6)
    deadline = time.monotonic() + 2
    while stack.num_leases("prefill") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stack.num_leases("prefill") == 0
