"""A prefill worker of TP2 with SP and DBO on, handing over to the stack's decode.

With exact exchange the tokens are one engine's. As served, with MXFP8, they are the reference's up to what its rounding
moves.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from openai import OpenAI

from tests import legs
from tests.e2e.reference_model import ReferenceModel
from tests.e2e.test_tokens import LENGTHS, greedy, prompts
from tests.stack import Stack
from tests.workers import Worker, running_workers, worker_config

pytestmark = pytest.mark.usefixtures("nothing_is_left")

# Uneven numbers of tokens, in one chunk and in several, and two prompts with one prefix: the second finds it cached.
PROMPTS = [prompts()[LENGTHS.index(length)] for length in (5, 129, 600, 1530)] + prompts()[-2:]
# Of one rounding to MXFP8, relative: 2^-4 at the most, root mean square over a group.
NOISE_INPUT = 2.6e-2
MAX_MISS = 0.5
# Tokens that have to be the best all the same, of all.
MIN_SHARE_OF_BEST = 0.7


def split_worker(exchange: str, stack: Stack, port: int, folder: Path) -> Iterator[Worker]:
    config = worker_config(
        "prefill",
        stack.checkpoint,
        parallelism={"tp_size": 2},
        token_split={"enable_sp": True, "enable_dbo": True, "sp_exchange": exchange, "dbo_min_tokens": 64},
        max_num_batched_tokens=512,
        kv_transfer={"port": port},
    )
    with running_workers(folder, (config, {"UCX_TLS": "tcp"})) as [worker]:
        yield worker


@pytest.fixture(scope="module")
def exact(stack: Stack, other_prefill_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    yield from split_worker("exact", stack, other_prefill_port, tmp_path_factory.mktemp("exact"))


def crossed(prefill: Worker, stack: Stack, prompt: list[int]) -> list[int]:
    """Greedy tokens with a handoff from ``prefill`` that decode has really read."""
    decode = stack.worker("decode")
    before = legs.samples(decode)
    tokens = legs.tokens_of(legs.decode(decode, prompt, legs.prefill(prefill.url, prompt)))
    after = legs.samples(decode)
    assert after["tandem_kv_recomputes_total"] == before["tandem_kv_recomputes_total"]
    assert after["tandem_kv_blocks_total"] > before["tandem_kv_blocks_total"]
    return tokens


def test_with_exact_exchange_the_pair_gives_one_engines_tokens(exact: Worker, stack: Stack, single: OpenAI) -> None:
    found = [crossed(exact, stack, prompt) for prompt in PROMPTS]
    assert found == [greedy(single, prompt)[: legs.NUM_TOKENS] for prompt in PROMPTS]
    assert "tokens are split: SP on, exchanged as exact, DBO from 64 tokens on" in exact.log.read_text()


def test_as_served_the_tokens_are_the_references_up_to_the_rounding(
    exact: Worker, stack: Stack, other_prefill_port: int, tmp_path: Path
) -> None:
    exact.stop()
    reference, num_best = ReferenceModel(stack.checkpoint), 0
    for served in split_worker("mxfp8", stack, other_prefill_port, tmp_path):
        for prompt in PROMPTS:
            tokens = crossed(served, stack, prompt)
            logprobs = reference.logprobs(prompt + tokens[:-1], last=legs.NUM_TOKENS)
            miss = logprobs.max(-1).values - logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
            if miss.max() > 0:
                assert miss.max() <= min(MAX_MISS, reference.noise_floor(prompt, NOISE_INPUT))
            num_best += int((miss == 0).sum())
        assert "tokens are split: SP on, exchanged as mxfp8, DBO from 64 tokens on" in served.log.read_text()
    assert num_best >= MIN_SHARE_OF_BEST * len(PROMPTS) * legs.NUM_TOKENS
