"""Many requests at once, workers killed under load, TP2 on both sides: each answer is right or an error, none hangs."""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from openai import APIStatusError

from tests.e2e.reference_model import ReferenceModel
from tests.stack import MODEL, Stack, running_stack

LENGTHS = [3, 100, 128, 130, 260, 700, 1300]
NUM_TOKENS = 8
NUM_REQUESTS = 300
NUM_KILLS = 6
ROUND_S = 45.0


def prompt_of(number: int) -> list[int]:
    draw = random.Random(number % 40)  # 40 prompts, so that many have a warm prefix
    return draw.choices(range(300, 500), k=LENGTHS[number % len(LENGTHS)])


def ask(stack: Stack, number: int) -> list[int]:
    answer = stack.client.completions.create(
        model=MODEL,
        prompt=prompt_of(number),
        max_tokens=NUM_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    tokens: list[int] = answer.choices[0].model_extra["token_ids"]  # type: ignore[index]
    return tokens


def ask_or_status(stack: Stack, number: int) -> list[int] | int:
    """The tokens, or the status of the error; a broken connection or a time-out is neither and is raised."""
    try:
        return ask(stack, number)
    except APIStatusError as refusal:
        return refusal.status_code


class Judge:
    """Whether tokens are the reference's, each prompt and answer computed once."""

    def __init__(self, checkpoint: Path) -> None:
        self._reference = ReferenceModel(checkpoint)
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], bool] = {}

    def is_right(self, number: int, tokens: list[int]) -> bool:
        key = (tuple(prompt_of(number)), tuple(tokens))
        if key not in self._known:
            logprobs = self._reference.logprobs([*key[0], *tokens[:-1]], last=NUM_TOKENS)
            chosen = logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
            self._known[key] = bool(((logprobs.max(-1).values - chosen) < 0.05).all())
        return self._known[key]


@pytest.fixture(scope="module")
def judge(checkpoint: Path) -> Judge:
    return Judge(checkpoint)


@pytest.fixture(scope="module")
def stack(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    log = tmp_path_factory.mktemp("logs") / "stack.log"
    with running_stack(checkpoint, log, "restart.max_crashes=50") as stack:
        yield stack


def no_lease_within(stack: Stack, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while stack.num_leases("prefill") and time.monotonic() < deadline:
        time.sleep(0.1)
    return stack.num_leases("prefill") == 0


def test_many_requests_at_once_are_all_right(stack: Stack, judge: Judge) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: ask(stack, number), range(NUM_REQUESTS)))
    assert all(judge.is_right(number, tokens) for number, tokens in enumerate(answers))
    assert no_lease_within(stack, 2)


def test_several_choices_share_one_handoff_and_leave_no_lease(stack: Stack) -> None:
    """Case 6 of the field, fifty times."""
    for number in range(50):
        answer = stack.client.completions.create(model=MODEL, prompt=prompt_of(number), n=4, max_tokens=2)
        assert len(answer.choices) == 4
    assert no_lease_within(stack, 2)


def test_workers_killed_under_load_cost_errors_but_no_wrong_token_and_no_hang(
    stack: Stack, judge: Judge, note: Callable[[str], None]
) -> None:
    right = failed = 0
    for kill in range(NUM_KILLS):
        victim = next(
            process
            for process in psutil.Process(stack.launcher.pid).children(recursive=True)
            if f"-m {('prefill', 'decode')[kill % 2]}_worker" in " ".join(process.cmdline()) and process.children()
        )
        deadline, number = time.monotonic() + ROUND_S, kill * 1000
        while time.monotonic() < deadline:
            began = time.monotonic()
            outcome = ask_or_status(stack, number)
            if isinstance(outcome, list):
                assert judge.is_right(number, outcome)
                right += 1
            else:
                assert outcome in (502, 503)
                failed += 1
                time.sleep(0.5)
            assert time.monotonic() - began < 60, "a request hung"
            number += 1
            if number == kill * 1000 + 3:
                victim.kill()
    note(f"{NUM_KILLS} kills: {right} right answers, {failed} errors")
    assert right > NUM_KILLS * 3
    assert no_lease_within(stack, 2)


def test_tp2_on_both_sides_gives_the_same_tokens(checkpoint: Path, judge: Judge, tmp_path: Path) -> None:
    tp2 = ("prefill.parallelism.tp_size=2", "decode.parallelism.tp_size=2", "name=tp2", "timeouts.start_s=900")
    with running_stack(checkpoint, tmp_path / "tp2.log", *tp2) as stack:
        for number in range(len(LENGTHS)):
            assert judge.is_right(number, ask(stack, number))
        assert no_lease_within(stack, 2)
        metrics = stack.metrics("decode")
        assert metrics["tandem_kv_posted_descriptors_total"] == metrics["tandem_kv_blocks_total"]
