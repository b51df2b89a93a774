"""Steady load on a stack whose workers are killed, and what may come of it: right tokens or an error, never a wait."""

import random
import threading
import time
import uuid
from collections import Counter
from types import TracebackType
from typing import Self

import httpx

from tests import legs
from tests.stack import Stack, engine_of, process_of

BACK_LIMIT_S = 180.0
REQUEST_LIMIT_S = 100.0
LENGTHS = (40, 130, 400, 700)
NUM_PROMPTS = 8


def kill_and_wait(stack: Stack, *roles: str) -> None:
    """SIGKILL the engine of prefill and the API process of decode; until the launcher has them serving again."""
    generations = stack.generations()
    for role in roles:
        worker = process_of(stack, f"{role}_worker")
        if role == "prefill":
            worker = engine_of(worker)
        worker.kill()
    wait_until_back(stack, generations, len(roles))


def wait_until_back(stack: Stack, generations: dict[str, str], num_restarted: int) -> None:
    """Until all workers of ``generations`` serve again, so many of them in a new generation."""
    began = time.monotonic()
    while time.monotonic() - began < BACK_LIMIT_S:
        now = stack.generations()
        restarted = [worker for worker in generations if now.get(worker) not in (None, generations[worker])]
        is_ready = stack.http.get(f"{stack.url}/ready").status_code == 200
        if len(restarted) == num_restarted and now.keys() == generations.keys() and is_ready:
            return
        time.sleep(0.3)
    raise AssertionError(f"not back within {BACK_LIMIT_S:g} s: {stack.generations()}, before: {generations}")


def prompt_of(number: int) -> list[int]:
    return random.Random(number).choices(range(300, 500), k=LENGTHS[number % len(LENGTHS)])


class SteadyLoad:
    """Two clients that ask one prompt after the other, and compare each answer with that of decode's engine alone.

    Each request has a salt of its own, so that no worker has its blocks: KV has to cross for each of them.
    ``failures`` counts the statuses of errors; a broken connection or a request that does not end counts as 0.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        decode_url = stack.worker("decode")
        self._expected = [
            legs.tokens_of(legs.decode(decode_url, prompt_of(number), None, cache_salt="alone"))
            for number in range(NUM_PROMPTS)
        ]
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in (1, 2)]
        self.right = 0
        self.wrong: list[int] = []
        self.failures: Counter[int] = Counter()
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def wait_for_right_answers(self, number: int) -> None:
        """Until so many more requests were answered right."""
        goal, began = self.right + number, time.monotonic()
        while self.right < goal:
            assert time.monotonic() - began < REQUEST_LIMIT_S, (self.right, self.failures)
            time.sleep(0.1)

    def wait_for_pair(self, number: int) -> None:
        """Until so many more requests went from prefill to decode, as the router counts them."""
        began, goal = time.monotonic(), self._num_by_pair() + number
        while self._num_by_pair() < goal:
            assert time.monotonic() - began < REQUEST_LIMIT_S, legs.paths(self._stack.control_url)
            time.sleep(0.3)

    def _num_by_pair(self) -> float:
        return legs.paths(self._stack.control_url).get("handoff", 0.0)

    def _ask(self, number: int) -> httpx.Response:
        body = legs.GREEDY | {
            "prompt": prompt_of(number),
            "max_tokens": legs.NUM_TOKENS,
            "cache_salt": uuid.uuid4().hex,
        }
        return legs.send(self._stack.url, body, timeout_s=REQUEST_LIMIT_S)

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._is_over.is_set():
            number, began = draw.randrange(NUM_PROMPTS), time.monotonic()
            try:
                answer = self._ask(number)
            except httpx.TransportError:
                self.failures[0] += 1
                continue
            finally:
                self.longest_s = max(self.longest_s, time.monotonic() - began)
            if answer.status_code != 200:
                self.failures[answer.status_code] += 1
                time.sleep(0.3)
            elif legs.tokens_of(answer) == self._expected[number]:
                self.right += 1
            else:
                self.wrong.append(number)
