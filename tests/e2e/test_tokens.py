"""The pair's greedy tokens are those of one engine and of an independent reference."""

import random
from dataclasses import dataclass

import pytest
import torch
from openai import OpenAI

from tests.e2e.reference_model import ReferenceModel
from tests.stack import MODEL, Stack

NUM_TOKENS = 16
VOCABULARY = range(300, 500)  # merged tokens: neither special nor raw bytes
SHARED_PREFIX = 700
LENGTHS = [5, 127, 128, 129, 600, 1100, 1530, 3000]
# The reference's own logprobs move by the noise floor when its input moves by float32's rounding; two right
# implementations may differ by a few times that, and only where the two best tokens are closer than that.
NOISE_INPUT = 3e-7
NOISE_FACTOR = 3.0


def prompts() -> list[list[int]]:
    draw = random.Random(7)
    shared = draw.choices(VOCABULARY, k=SHARED_PREFIX)
    alone = [draw.choices(VOCABULARY, k=length) for length in LENGTHS]
    return [*alone, shared + draw.choices(VOCABULARY, k=40), shared + draw.choices(VOCABULARY, k=333)]


def greedy(client: OpenAI, prompt: list[int]) -> list[int]:
    answer = client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=NUM_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == NUM_TOKENS
    tokens: list[int] = answer.choices[0].model_extra["token_ids"]  # type: ignore[index]
    return tokens


@dataclass
class Answers:
    cold: list[list[int]]
    warm: list[list[int]]
    one_engine: list[list[int]]


@pytest.fixture(scope="module")
def answers(stack: Stack, single: OpenAI) -> Answers:
    before = stack.metrics("decode")["tandem_kv_reads_total"]
    cold = [greedy(stack.client, prompt) for prompt in prompts()]
    reads = stack.metrics("decode")["tandem_kv_reads_total"] - before
    assert reads == len(cold), "each cold prompt crossed by a read of its own"
    warm = [greedy(stack.client, prompt) for prompt in prompts()]
    return Answers(cold, warm, [greedy(single, prompt) for prompt in prompts()])


def test_cold_answers_equal_one_engine(answers: Answers) -> None:
    assert answers.cold == answers.one_engine


def test_answers_with_a_warm_prefix_equal_one_engine(answers: Answers) -> None:
    assert answers.warm == answers.one_engine


def test_answers_equal_the_reference_up_to_the_noise_floor(answers: Answers, stack: Stack) -> None:
    reference = ReferenceModel(stack.checkpoint)
    num_close = 0
    for prompt, tokens in zip(prompts(), answers.cold, strict=True):
        logprobs = reference.logprobs(prompt + tokens[:-1], last=NUM_TOKENS)
        chosen = logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        miss = (logprobs.max(-1).values - chosen).max().item()
        if miss > 0:
            num_close += 1
            floor = reference.noise_floor(prompt, NOISE_INPUT) * NOISE_FACTOR
            assert miss <= floor, f"prompt of {len(prompt)}: a token {miss:.2e} below the best, noise floor {floor:.2e}"
    assert num_close <= 2, "near-ties are rare; many misses mean a wrong model"


def test_the_noise_floor_is_far_below_what_tells_tokens_apart(stack: Stack) -> None:
    """Else the comparison above would excuse anything."""
    reference = ReferenceModel(stack.checkpoint)
    for prompt in prompts()[2:6:3]:
        assert reference.noise_floor(prompt, NOISE_INPUT) * NOISE_FACTOR < 0.1


def test_long_prompts_are_sparse_enough_to_tell(answers: Answers, stack: Stack) -> None:
    """A dense model would answer otherwise, so equality says that block selection works."""
    dense = ReferenceModel(stack.checkpoint, is_dense=True)
    prompt, tokens = prompts()[LENGTHS.index(3000)], answers.cold[LENGTHS.index(3000)]
    assert dense.logprobs(prompt + tokens[:-1], last=NUM_TOKENS).argmax(-1).tolist() != tokens
