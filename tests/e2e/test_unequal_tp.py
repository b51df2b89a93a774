"""Prefill and decode of unequal tensor parallelism, over TCP, with little KV space, and with the policy `fail`.

Two workers of TP2 run beside the stack's of TP1: prefill TP2, with its tokens split over the ranks (SP) and in two
halves (DBO), -> decode TP1, and prefill TP1 -> decode TP2, which has whole experts on each rank (EP) where prefill cuts
them. Two long prompts don't fit into their KV space, so vLLM preempts one; decode TP2 fails what does not cross.
"""

import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest
from openai import OpenAI

from tests import legs
from tests.e2e.conftest import MAX_MODEL_LEN
from tests.stack import MODEL, Stack, free_port
from tests.workers import Worker, running_workers, worker_config

pytestmark = pytest.mark.usefixtures("nothing_is_left")

VOCABULARY = range(300, 500)
ROW_BYTES_TP2 = 128 * 72 * (4 * 2 * 2 + 4)  # 4 layers, K and V of 2 heads, and an index key (facts M4)
# One block is vLLM's null block. A context of MAX_MODEL_LEN has to fit.
NUM_BLOCKS = MAX_MODEL_LEN // 128 + 2


@dataclass
class Pairs:
    prefill1: str
    decode1: str
    prefill2: Worker
    decode2: Worker


@pytest.fixture(scope="module")
def pairs(stack: Stack, other_prefill_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    [first] = [r for r in stack.registrations() if r["role"] == "prefill"]
    small = {"parallelism": {"tp_size": 2}, "kv_cache_bytes": NUM_BLOCKS * ROW_BYTES_TP2, "max_num_batched_tokens": 512}
    prefill = worker_config(
        "prefill",
        stack.checkpoint,
        **small,
        # As it is served but for the format: MXFP8 moves tokens that are nearly ties (tests/soak/test_token_split.py).
        token_split={"enable_sp": True, "enable_dbo": True, "sp_exchange": "exact", "dbo_min_tokens": 64},
        kv_transfer={"port": other_prefill_port},
        extra_vllm_args=["--no-scheduler-reserve-full-isl"],
    )
    readable = [f"{first['kv_host']}:{first['kv_port']}", f"127.0.0.1:{other_prefill_port}"]
    decode = worker_config(
        "decode",
        stack.checkpoint,
        **small | {"parallelism": {"tp_size": 2, "enable_ep": True}},
        kv_transfer={"port": free_port(), "extra_peers": readable, "load_failure_policy": "fail", "read_timeout_s": 20},
    )
    with running_workers(
        tmp_path_factory.mktemp("tp2"), (prefill, {"UCX_TLS": "tcp"}), (decode, {"UCX_TLS": "tcp"})
    ) as [prefill2, decode2]:
        yield Pairs(stack.worker("prefill"), stack.worker("decode"), prefill2, decode2)


def prompt_of(seed: int, num_tokens: int) -> list[int]:
    return random.Random(seed).choices(VOCABULARY, k=num_tokens)


def one_engine(single: OpenAI, prompt: list[int], num_tokens: int = legs.NUM_TOKENS) -> list[int]:
    answer = single.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=num_tokens,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    tokens: list[int] = answer.choices[0].model_extra["token_ids"]  # type: ignore[index]
    return tokens


def cross(prefill_url: str, decode_url: str, prompt: list[int]) -> list[int]:
    """Greedy tokens through a handoff that must have been read."""
    before = legs.samples(decode_url)
    tokens = legs.tokens_of(legs.decode(decode_url, prompt, legs.prefill(prefill_url, prompt)))
    after = legs.samples(decode_url)
    for name in ("tandem_kv_failures_total", "tandem_kv_recomputes_total", "tandem_kv_refusals_total"):
        assert after[name] == before[name], name
    assert after["tandem_kv_blocks_total"] > before["tandem_kv_blocks_total"]
    return tokens


# Contexts beyond the nano model's top 4 blocks of 128 tokens, where a lost index key or a permuted head would show.
@pytest.mark.parametrize("num_tokens", [129, 1530])
def test_prefill_tp2_to_decode_tp1_gives_one_engines_tokens(pairs: Pairs, single: OpenAI, num_tokens: int) -> None:
    """Case 34. Two source ranks, one descriptor a block from each."""
    before = legs.samples(pairs.decode1)
    prompt = prompt_of(num_tokens, num_tokens)
    assert cross(pairs.prefill2.url, pairs.decode1, prompt) == one_engine(single, prompt)
    after, num_blocks = legs.samples(pairs.decode1), -(-num_tokens // 128)
    moved = {name: after[f"tandem_kv_{name}_total"] - before[f"tandem_kv_{name}_total"] for name in ("reads", "blocks")}
    assert moved == {"reads": 2, "blocks": num_blocks}
    posted = after["tandem_kv_posted_descriptors_total"] - before["tandem_kv_posted_descriptors_total"]
    assert posted == 2 * num_blocks
    assert legs.no_lease_within(pairs.prefill2.url, 2)
    assert "tokens are split: SP on, exchanged as exact, DBO from 64 tokens on" in pairs.prefill2.log.read_text()


@pytest.mark.parametrize("num_tokens", [129, 1530])
def test_prefill_tp1_to_decode_tp2_gives_one_engines_tokens(pairs: Pairs, single: OpenAI, num_tokens: int) -> None:
    """Case 34. Each decode rank reads its heads, and all index keys."""
    before = legs.samples(pairs.decode2.url)
    prompt = prompt_of(num_tokens + 7, num_tokens)
    assert cross(pairs.prefill1, pairs.decode2.url, prompt) == one_engine(single, prompt)
    after, num_blocks = legs.samples(pairs.decode2.url), -(-num_tokens // 128)
    assert after["tandem_kv_reads_total"] - before["tandem_kv_reads_total"] == 2
    moved = after["tandem_kv_bytes_total"] - before["tandem_kv_bytes_total"]
    assert moved == 2 * num_blocks * ROW_BYTES_TP2, "both ranks' rows, index keys for each"
    assert legs.no_lease_within(pairs.prefill1, 2)


def test_the_transport_is_named(pairs: Pairs) -> None:
    assert legs.samples(pairs.decode2.url)["tandem_kv_transport:tcp"] == 1


def test_an_abort_during_a_transfer_keeps_the_blocks_until_it_has_ended(pairs: Pairs) -> None:
    """Case 13: over TCP a read goes on only while prefill runs; decode's blocks must outlive the client."""
    reads, prompt = "tandem_kv_reads_total", prompt_of(50, 1000)
    cross(pairs.prefill2.url, pairs.decode2.url, prompt_of(49, 200))  # they know each other from here on
    handoff = legs.prefill(pairs.prefill2.url, prompt)
    before = legs.samples(pairs.decode2.url)[reads]
    source = pairs.prefill2.engine_processes()
    for process in source:
        process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(httpx.TimeoutException):
            legs.decode(pairs.decode2.url, prompt, handoff, timeout_s=2)
        time.sleep(1)
        assert legs.samples(pairs.decode2.url)[reads] == before, "the read was to be under way"
    finally:
        for process in source:
            process.send_signal(signal.SIGCONT)
    assert legs.counted_within(pairs.decode2.url, reads, before + 2, 5), "it was drained on both ranks, not cut"
    assert legs.no_lease_within(pairs.prefill2.url, 2)
    # Needs nearly all of decode's blocks, so those of the abandoned read were given back.
    cross(pairs.prefill1, pairs.decode2.url, prompt_of(51, (NUM_BLOCKS - 6) * 128))


def has_preempted_since(url: str, before: float) -> bool:
    """vLLM tells of a preemption with the next token of the request, so this is asked when it has ended."""
    return legs.counted_within(url, "vllm:num_preemptions_total", before + 1, 1)


def test_preempted_prompts_give_the_right_tokens(pairs: Pairs, single: OpenAI) -> None:
    """The blocks of the first prompt are held, so the second runs out of blocks on its way."""
    url = pairs.prefill2.url
    before = legs.samples(url)["vllm:num_preemptions_total"]
    for round_, wait_s in enumerate((4, 12, 30)):  # a busy machine may need longer to get there
        prompts = [prompt_of(60 + 2 * round_ + n, (NUM_BLOCKS // 2 + 2) * 128) for n in range(2)]
        first = legs.prefill(url, prompts[0], lease_s=60)
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(legs.prefill, url, prompts[1])
            with pytest.raises(TimeoutError):
                second.result(timeout=wait_s)
            tokens = [legs.tokens_of(legs.decode(pairs.decode1, prompts[0], first))]
            tokens.append(legs.tokens_of(legs.decode(pairs.decode1, prompts[1], second.result())))
        assert tokens == [one_engine(single, prompt) for prompt in prompts]
        assert legs.no_lease_within(url, 2)
        if has_preempted_since(url, before):
            return
    pytest.fail("no prompt was preempted; the test shows nothing")


def test_preempted_answers_give_the_right_tokens(pairs: Pairs, single: OpenAI) -> None:
    """Answers that outgrow decode TP2's blocks: one is preempted and computed again, its handoff long gone."""
    url, num_tokens = pairs.decode2.url, 40
    before = legs.samples(url)["vllm:num_preemptions_total"]
    for round_ in range(3):
        prompts = [prompt_of(70 + 3 * round_ + n, (NUM_BLOCKS // 3 - 1) * 128 - 3) for n in range(3)]
        handoffs = [legs.prefill(pairs.prefill1, prompt) for prompt in prompts]
        with ThreadPoolExecutor(3) as pool:
            answers = pool.map(
                lambda prompt, handoff: legs.decode(url, prompt, handoff, max_tokens=num_tokens), prompts, handoffs
            )
            tokens = [legs.tokens_of(answer) for answer in answers]
        assert tokens == [one_engine(single, prompt, num_tokens) for prompt in prompts]
        assert legs.no_lease_within(pairs.prefill1, 2)
        if has_preempted_since(url, before):
            return
    pytest.fail("no answer was preempted; the test shows nothing")


def test_expired_blocks_that_others_have_overwritten_are_not_believed(pairs: Pairs, single: OpenAI) -> None:
    """Case 15, with the blocks really used again: recompute on decode TP1, a clear error on decode TP2."""
    prompt, other = prompt_of(80, 1000), prompt_of(81, (NUM_BLOCKS - 3) * 128)
    handoffs = [legs.prefill(pairs.prefill2.url, prompt, lease_s=1) for _ in range(2)]
    assert legs.no_lease_within(pairs.prefill2.url, 3)
    legs.prefill(pairs.prefill2.url, other, lease_s=1)
    before = legs.samples(pairs.decode1)["tandem_kv_expired_reads_total"]
    assert legs.tokens_of(legs.decode(pairs.decode1, prompt, handoffs[0])) == one_engine(single, prompt)
    assert legs.counted_within(pairs.decode1, "tandem_kv_expired_reads_total", before + 1, 2)
    refused = legs.decode(pairs.decode2.url, prompt, handoffs[1])
    assert refused.status_code >= 500
    assert "choices" not in refused.json()


def test_a_prefill_that_dies_between_the_legs_is_an_error_at_once(pairs: Pairs, single: OpenAI) -> None:
    """Case 17. Last: it ends prefill TP2. Decode TP1 recomputes, decode TP2 fails, neither waits."""
    prompts = [prompt_of(90 + n, 600) for n in range(2)]
    handoffs = [legs.prefill(pairs.prefill2.url, prompt) for prompt in prompts]
    for process in pairs.prefill2.engine_processes():
        process.kill()
    pairs.prefill2.process.kill()
    began = time.monotonic()
    assert legs.tokens_of(legs.decode(pairs.decode1, prompts[0], handoffs[0])) == one_engine(single, prompts[0])
    failed = legs.decode(pairs.decode2.url, prompts[1], handoffs[1])
    assert failed.status_code >= 500
    assert time.monotonic() - began < 30
    assert legs.counted_within(pairs.decode2.url, "tandem_kv_failures_total", 1, 2)
    # Both go on.
    for decode_url, seed in ((pairs.decode1, 95), (pairs.decode2.url, 96)):
        prompt = prompt_of(seed, 300)
        assert cross(pairs.prefill1, decode_url, prompt) == one_engine(single, prompt)
