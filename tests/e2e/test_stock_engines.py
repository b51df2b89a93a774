"""The router alone in front of stock vLLM engines with vLLM's own NixlConnector, known by their URLs."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.dialects import NIXL, nixl_release_body
from tests.stack import REPOSITORY, free_port, stop, wait_until_ok
from tests.stock_engines import LEASE_S, MODEL, build_stock_checkpoint, running_stock_engines

GREEDY = {"model": MODEL, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": 8}
LENGTHS = [5, 127, 128, 129, 700, 1500]


class Stock:
    """A router and its two engines."""

    def __init__(self, router: str, prefill: str, decode: str) -> None:
        self.router, self.prefill, self.decode = router, prefill, decode

    def complete(self, url: str, prompt: list[int], **options: Any) -> httpx.Response:
        return httpx.post(f"{url}/v1/completions", json=GREEDY | {"prompt": prompt, **options}, timeout=60)

    def tokens(self, url: str, prompt: list[int], **options: Any) -> list[int]:
        answer = self.complete(url, prompt, **options)
        assert answer.status_code == 200, answer.text
        tokens: list[int] = answer.json()["choices"][0]["token_ids"]
        return tokens

    def holds_nothing_within(self, url: str, seconds: float) -> bool:
        """Whether no block of the engine is in use. It tells with its next step, so each look is a request too."""
        deadline_s = time.monotonic() + seconds
        while True:
            self.tokens(url, [7], max_tokens=1, cache_salt="look")
            if sample(url, "vllm:kv_cache_usage_perc") == 0:
                return True
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.1)


def sample(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    return random.Random(seed * 10_000 + num_tokens).choices(range(300, 500), k=num_tokens)


@pytest.fixture(scope="module")
def stock(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    logs = tmp_path_factory.mktemp("stock")
    model = build_stock_checkpoint(checkpoint, logs)
    with running_stock_engines(model, logs, 2) as (prefill, decode):
        port = free_port()
        command = [sys.executable, "-m", "router", "--port", str(port), "--prefill", prefill, "--decode", decode]
        with (logs / "router.log").open("wb") as out:
            router = subprocess.Popen(command, cwd=REPOSITORY, env=os.environ, stdout=out, stderr=out)
            try:
                wait_until_ok(f"http://127.0.0.1:{port}/ready", router, logs / "router.log")
                yield Stock(f"http://127.0.0.1:{port}", prefill, decode)
            finally:
                stop(router)


@pytest.mark.parametrize("num_tokens", LENGTHS)
def test_tokens_equal_one_engines_and_nothing_stays_held(stock: Stock, num_tokens: int) -> None:
    prompt = prompt_of(num_tokens)
    before = sample(stock.decode, "vllm:nixl_bytes_transferred_sum")
    tokens = stock.tokens(stock.router, prompt)
    assert stock.holds_nothing_within(stock.prefill, 2)
    assert stock.holds_nothing_within(stock.decode, 2)
    assert sample(stock.decode, "vllm:nixl_bytes_transferred_sum") > before
    # The same engine without a handoff and without what it has just cached.
    assert tokens == stock.tokens(stock.decode, prompt, cache_salt="alone")


def test_streams_and_chats_are_served(stock: Stock) -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello " * 200}], "temperature": 0}
    answers = []
    for url in (stock.router, stock.decode):
        reply = httpx.post(f"{url}/v1/chat/completions", json=chat | {"max_tokens": 6, "stream": True}, timeout=60)
        events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        # Where an engine cuts its text into events is a matter of timing.
        answers.append("".join(choice["delta"].get("content") or "" for choice in choices))
        assert reply.text.rstrip().endswith("data: [DONE]")
    assert answers[0] == answers[1]


def test_several_choices_are_decodes_alone_and_counted(stock: Stock) -> None:
    """A stock handoff can be read once; read by several it would leave the others' blocks held."""
    answer = stock.complete(stock.router, prompt_of(300, seed=1), n=3, temperature=1)
    assert len(answer.json()["choices"]) == 3
    metrics = httpx.get(f"{stock.router}/metrics", timeout=30).text
    assert 'tandem_router_path_total{path="decode_only",reason="several_readers"} 1.0' in metrics
    assert stock.holds_nothing_within(stock.prefill, 2)


def test_a_handoff_that_nobody_reads_is_given_back_by_a_refused_request(stock: Stock) -> None:
    ask = json.loads(NIXL.ask("a" * 32, 1))
    answer = stock.complete(stock.prefill, prompt_of(900, seed=2), max_tokens=1, kv_transfer_params=ask)
    assert not stock.holds_nothing_within(stock.prefill, 1), "its lease has just begun"
    handoff = json.dumps(answer.json()["kv_transfer_params"])
    headers = {"content-type": "application/json"}
    url = f"{stock.decode}/v1/completions"
    assert httpx.post(url, content=nixl_release_body(handoff), headers=headers, timeout=30).status_code == 404
    assert stock.holds_nothing_within(stock.prefill, 2)


def test_clients_that_leave_at_any_moment_leave_nothing_held(stock: Stock) -> None:
    for number in range(12):
        body = GREEDY | {"prompt": prompt_of(1200, seed=3 + number), "stream": True, "max_tokens": 200}
        with suppress(httpx.TimeoutException):
            httpx.post(f"{stock.router}/v1/completions", json=body, timeout=0.02 * (number + 1))
    # A prefill that finished in the very moment in which its client left keeps its blocks for its lease: to end a
    # request is all that can be asked of a stock engine then.
    assert stock.holds_nothing_within(stock.decode, 5)
    assert stock.holds_nothing_within(stock.prefill, LEASE_S + 5)
    assert stock.tokens(stock.router, prompt_of(50)) == stock.tokens(stock.decode, prompt_of(50), cache_salt="alone")
