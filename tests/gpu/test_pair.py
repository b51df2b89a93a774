"""Prefill on one GPU, decode on another: rows cross GPU memory, and the tokens are those of one engine."""

import random
import time
from collections.abc import Iterator

import pytest

from tests import legs
from tests.stack import Stack, build_checkpoint, running_stack

LENGTHS = [5, 127, 128, 129, 600, 1100, 1530, 3000]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    checkpoint = build_checkpoint(tmp_path_factory.mktemp("state"))
    log = tmp_path_factory.mktemp("logs") / "stack.log"
    settings = ["name=gpu", "engine.device=cuda", "engine.kv_cache_bytes=1GiB", "timeouts.start_s=400"]
    settings.append("engine.tool_call_parser=null")  # no tools here; a parser may want more packages
    with running_stack(checkpoint, log, *settings) as stack:
        yield stack


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(300, 500), k=num_tokens)


@pytest.mark.parametrize("num_tokens", LENGTHS)
def test_rows_between_gpus_give_one_engines_tokens(stack: Stack, num_tokens: int) -> None:
    prompt, decode_url = prompt_of(num_tokens, num_tokens), stack.worker("decode")
    before = legs.samples(decode_url)
    tokens = legs.tokens_of(legs.decode(decode_url, prompt, legs.prefill(stack.worker("prefill"), prompt)))
    assert legs.counted_within(decode_url, "tandem_kv_reads_total", before["tandem_kv_reads_total"] + 1, 5)
    after, num_blocks = legs.samples(decode_url), -(-num_tokens // 128)
    posted = after["tandem_kv_posted_descriptors_total"] - before["tandem_kv_posted_descriptors_total"]
    assert posted == after["tandem_kv_blocks_total"] - before["tandem_kv_blocks_total"] == num_blocks
    # The same engine without a handoff and without what it has just cached: another first token, then the prompt.
    assert tokens == legs.tokens_of(legs.decode(decode_url, prompt, None, cache_salt="alone"))
    assert legs.no_lease_within(stack.worker("prefill"), 2)


def test_an_expired_handoff_is_not_believed(stack: Stack) -> None:
    """Fence words lie in host memory, rows on the GPU."""
    prompt, decode_url = prompt_of(700, 1), stack.worker("decode")
    handoff = legs.prefill(stack.worker("prefill"), prompt, lease_s=1)
    time.sleep(3)
    before = legs.samples(decode_url)["tandem_kv_expired_reads_total"]
    tokens = legs.tokens_of(legs.decode(decode_url, prompt, handoff))
    assert legs.counted_within(decode_url, "tandem_kv_expired_reads_total", before + 1, 5)
    assert tokens == legs.tokens_of(legs.decode(decode_url, prompt, None, cache_salt="alone"))


def test_rows_cross_by_nvlink(stack: Stack) -> None:
    found = legs.samples(stack.worker("decode"))
    assert found["tandem_kv_transport:nvlink"] == 1, {k: v for k, v in found.items() if "transport" in k}
    assert found["tandem_kv_transport:tcp"] == 0
