"""What goes wrong with handoffs in the field (shared/spec cases by number), against the running stack.

After each fault every lease is given back within two seconds, not by time-out, and the next request works.
"""

import json
import random
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import psutil
import pytest
from openai import BadRequestError

from tests import legs
from tests.e2e.conftest import MAX_MODEL_LEN
from tests.stack import MODEL, Stack, engine_of, process_of
from tests.workers import static_router

pytestmark = pytest.mark.usefixtures("nothing_is_left")

VOCABULARY = range(300, 500)
AT_ONCE_S = 2.0


def prompt_of(seed: int, num_tokens: int) -> list[int]:
    return random.Random(seed).choices(VOCABULARY, k=num_tokens)


def greedy(stack: Stack, prompt: list[int]) -> list[int]:
    return legs.tokens_of(legs.send(stack.url, legs.GREEDY | {"prompt": prompt, "max_tokens": legs.NUM_TOKENS}))


def test_a_first_token_that_ends_the_answer_ends_it_at_once(stack: Stack) -> None:
    """Case 5."""
    began = time.monotonic()
    answer = stack.client.completions.create(
        model=MODEL, prompt=prompt_of(2, 200), max_tokens=50, logit_bias={str(stack.end_token): 100}
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1
    first = stack.client.completions.create(model=MODEL, prompt=prompt_of(3, 200), max_tokens=1, temperature=0)
    stopped = stack.client.completions.create(
        model=MODEL, prompt=prompt_of(3, 200), max_tokens=50, temperature=0, stop=[first.choices[0].text]
    )
    assert (stopped.choices[0].finish_reason, stopped.choices[0].text) == ("stop", "")
    assert time.monotonic() - began < 15


def test_several_choices_share_one_handoff_and_leave_no_lease(stack: Stack) -> None:
    """Case 6; fifty times in the soak form."""
    for number in range(12):
        answer = stack.client.completions.create(model=MODEL, prompt=prompt_of(number, 130), n=4, max_tokens=1)
        assert len(answer.choices) == 4


def test_a_client_that_leaves_before_the_first_token_stops_prefill(stack: Stack) -> None:
    """Case 12: ten long prompts would take most of a minute."""
    greedy(stack, prompt_of(4, 20))
    for number in range(10):
        body = {"model": MODEL, "prompt": prompt_of(100 + number, 3000), "max_tokens": 5}
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{stack.url}/v1/completions", json=body, timeout=0.15)
    began = time.monotonic()
    greedy(stack, prompt_of(5, 20))
    # At most the steps under way: 1,024 tokens, which take a busy machine a second.
    assert time.monotonic() - began < 2.5, "the abandoned prompts were computed first"


def test_a_decode_that_refuses_gives_prefills_blocks_back(stack: Stack) -> None:
    """Case 14: prefill doesn't see how long the answer must be, decode finds that it can't be."""
    granted = legs.samples(stack.worker("prefill"))["tandem_kv_leases_granted_total"]
    with pytest.raises(BadRequestError):
        stack.client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "word " * 300}],
            extra_body={"min_tokens": MAX_MODEL_LEN - 100},
        )
    assert legs.counted_within(stack.worker("prefill"), "tandem_kv_leases_granted_total", granted + 1, AT_ONCE_S)


def test_a_client_that_leaves_between_the_legs_gives_the_blocks_back(stack: Stack) -> None:
    """Case 14: decode hangs, so that the client is between the legs for sure."""
    prefill_url, decode = stack.worker("prefill"), process_of(stack, "decode_worker")
    granted = legs.samples(prefill_url)["tandem_kv_leases_granted_total"]
    decode.send_signal(signal.SIGSTOP)
    try:
        body = {"model": MODEL, "prompt": prompt_of(7, 300), "max_tokens": 5}
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{stack.url}/v1/completions", json=body, timeout=4)
        assert legs.counted_within(prefill_url, "tandem_kv_leases_granted_total", granted + 1, AT_ONCE_S)
        assert legs.no_lease_within(prefill_url, AT_ONCE_S)
    finally:
        decode.send_signal(signal.SIGCONT)


def test_an_expired_handoff_is_computed_again_and_never_believed(stack: Stack) -> None:
    """Case 15: a lease of one second, decode asked after three."""
    prompt = prompt_of(8, 700)
    handoff = legs.prefill(stack.worker("prefill"), prompt, lease_s=1)
    before = legs.samples(stack.worker("decode"))
    time.sleep(3)
    answer = legs.decode(stack.worker("decode"), prompt, handoff)
    for name in ("tandem_kv_expired_reads_total", "tandem_kv_recomputes_total"):
        assert legs.counted_within(stack.worker("decode"), name, before[name] + 1, AT_ONCE_S), name
    assert legs.tokens_of(answer) == greedy(stack, prompt)
    assert legs.counted_within(stack.worker("prefill"), "tandem_kv_leases_ended_total:expired", 1, AT_ONCE_S)


def test_a_queued_request_keeps_its_lease(stack: Stack) -> None:
    """Eight long answers fill decode; a handoff with a lease of one second waits behind them and is still good."""
    prefill_url, decode_url = stack.worker("prefill"), stack.worker("decode")
    busy = [
        threading.Thread(target=legs.decode, args=(decode_url, prompt_of(20 + n, 30), None), kwargs={"max_tokens": 90})
        for n in range(8)
    ]
    for thread in busy:
        thread.start()
    time.sleep(0.5)
    prompt = prompt_of(9, 300)
    handoff = legs.prefill(prefill_url, prompt, lease_s=1)
    before, began = legs.samples(decode_url), time.monotonic()
    tokens = legs.tokens_of(legs.decode(decode_url, prompt, handoff))
    waited_s, after = time.monotonic() - began, legs.samples(decode_url)
    for thread in busy:
        thread.join()
    assert waited_s > 1.5, "it did not wait for longer than its lease; the test shows nothing"
    assert after["tandem_kv_expired_reads_total"] == before["tandem_kv_expired_reads_total"]
    assert after["tandem_kv_reads_total"] == before["tandem_kv_reads_total"] + 1
    assert tokens == greedy(stack, prompt)


def test_a_handoff_is_used_once(stack: Stack) -> None:
    """Case 20, and a replay: the second use is refused and leaves the first alone."""
    prompt = prompt_of(10, 300)
    handoff = legs.prefill(stack.worker("prefill"), prompt)
    first = legs.tokens_of(legs.decode(stack.worker("decode"), prompt, handoff))
    again = legs.decode(stack.worker("decode"), prompt, handoff)
    assert (again.status_code, again.headers["x-tandem-handoff-refused"]) == (409, "replayed")
    assert first == greedy(stack, prompt)


class BreakingDecode(BaseHTTPRequestHandler):
    """Says that it is well, and hangs up on whoever asks it for an answer."""

    asked: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": MODEL, "max_model_len": MAX_MODEL_LEN}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.asked.append(self.rfile.read(int(self.headers["content-length"])))
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Not on the terminal."""


def test_a_retry_takes_a_fresh_handoff_and_bills_one_answer(stack: Stack, tmp_path: Path) -> None:
    """Case 20: the first decode worker breaks off, the second answers."""
    prefill_url, decode_url = stack.worker("prefill"), stack.worker("decode")
    before, generated = legs.samples(prefill_url), legs.samples(decode_url)["vllm:generation_tokens_total"]
    prompt = prompt_of(16, 300)
    server = ThreadingHTTPServer(("127.0.0.1", 0), BreakingDecode)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        broken = f"http://127.0.0.1:{server.server_port}"
        with static_router(tmp_path, [prefill_url], [broken, decode_url]) as url:
            while not BreakingDecode.asked:  # which of the two is asked first is the router's choice
                answer = legs.send(url, legs.GREEDY | {"prompt": prompt, "max_tokens": legs.NUM_TOKENS})
                generated += legs.NUM_TOKENS
                assert legs.tokens_of(answer)
    finally:
        server.shutdown()
        server.server_close()
    released = "tandem_kv_leases_ended_total:released"
    assert legs.counted_within(prefill_url, released, before[released] + 1, AT_ONCE_S), "the first one's"
    assert legs.samples(decode_url)["vllm:generation_tokens_total"] == generated
    # The handoff that was broken off is over; whoever kept it can't read anything with it.
    kept = json.loads(BreakingDecode.asked[0])["kv_transfer_params"]
    expired = legs.samples(decode_url)["tandem_kv_expired_reads_total"]
    assert legs.tokens_of(legs.decode(decode_url, prompt, kept)) == legs.tokens_of(answer) == greedy(stack, prompt)
    assert legs.counted_within(decode_url, "tandem_kv_expired_reads_total", expired + 1, AT_ONCE_S)


def test_a_handoff_for_another_prompt_is_not_used(stack: Stack) -> None:
    prompt, other = prompt_of(11, 300), prompt_of(12, 300)
    handoff = legs.prefill(stack.worker("prefill"), prompt)
    before = legs.samples(stack.worker("decode"))
    tokens = legs.tokens_of(legs.decode(stack.worker("decode"), other, handoff))
    name = "tandem_kv_refusals_total:prompt"
    assert legs.counted_within(stack.worker("decode"), name, before[name] + 1, AT_ONCE_S)
    assert tokens == greedy(stack, other)


def test_blocks_that_decode_holds_are_not_read(stack: Stack) -> None:
    shared = prompt_of(13, 512)
    greedy(stack, shared + prompt_of(14, 100))
    prompt = shared + prompt_of(15, 200)
    handoff = legs.prefill(stack.worker("prefill"), prompt)
    before = legs.samples(stack.worker("decode"))["tandem_kv_blocks_total"]
    tokens = legs.tokens_of(legs.decode(stack.worker("decode"), prompt, handoff))
    assert legs.counted_within(stack.worker("decode"), "tandem_kv_blocks_total", before + 2, AT_ONCE_S)
    assert legs.samples(stack.worker("decode"))["tandem_kv_blocks_total"] == before + 2, "4 of 6 blocks were there"
    assert tokens == greedy(stack, prompt)


def test_transfers_leave_the_engines_on_all_cores(stack: Stack) -> None:
    for module in ("prefill_worker", "decode_worker"):
        engine = engine_of(process_of(stack, module))
        assert engine.cpu_affinity() == psutil.Process().cpu_affinity()
