"""Workers that die are started again by themselves, and the service is what it was. Last: it restarts the shared stack.

The soak form (tests/soak) restarts prefill twenty times.
"""

import time
from concurrent.futures import ThreadPoolExecutor

from tests import legs
from tests.restarts import SteadyLoad, kill_and_wait, wait_until_back
from tests.stack import Stack, engine_of, process_of


def test_a_prefill_that_dies_at_its_work_is_an_error_at_once_and_decode_hears_nothing(stack: Stack) -> None:
    """Case 18."""
    computed = legs.samples(stack.worker("decode"))["vllm:prompt_tokens_total"]
    body = legs.GREEDY | {"prompt": [300 + n % 200 for n in range(3100)], "max_tokens": 5}
    generations = stack.generations()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(legs.send, stack.url, body)
        time.sleep(1.5)
        assert not answer.done(), "the prompt was to be long enough"
        engine_of(process_of(stack, "prefill_worker")).kill()
        began = time.monotonic()
        assert answer.result().status_code in (502, 503)
        assert time.monotonic() - began < 10
    assert legs.samples(stack.worker("decode"))["vllm:prompt_tokens_total"] == computed
    wait_until_back(stack, generations, 1)


def test_a_prefill_restarted_under_load_costs_no_wrong_token(stack: Stack) -> None:
    """Case 37. With the test above prefill restarts twice; here decode dies with it."""
    with SteadyLoad(stack) as load:
        kill_and_wait(stack, "prefill", "decode")
        load.wait_for_right_answers(3)
    assert load.wrong == []
    assert load.longest_s < 60, "a request hung"
    assert set(load.failures) <= {502, 503}, load.failures
    deadline = time.monotonic() + 2
    while stack.num_leases("prefill") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stack.num_leases("prefill") == 0
    assert process_of(stack, "prefill_worker").is_running()
