"""Workers that die are started again by themselves, and the service is what it was. Last: it restarts the shared stack.

The soak form (tests/soak) restarts prefill twenty times.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import legs
from tests.restarts import SteadyLoad, kill_and_wait, wait_until_back
from tests.stack import Stack, engine_of, process_of

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_a_prefill_that_dies_at_its_work_under_load_fails_no_request(stack: Stack) -> None:
    """Cases 18 and 37. The policy is to recompute, so decode does what prefill can't, and that is counted."""
    prompt = [300 + n % 200 for n in range(3100)]
    expected = legs.tokens_of(legs.decode(stack.worker("decode"), prompt, None, cache_salt="alone"))
    body = legs.GREEDY | {"prompt": prompt, "max_tokens": legs.NUM_TOKENS}
    generations, before = stack.generations(), legs.paths(stack.control_url)
    with SteadyLoad(stack) as load, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(legs.send, stack.url, body, 120.0)
        time.sleep(1.5)
        assert not answer.done(), "the prompt was to be long enough"
        engine_of(process_of(stack, "prefill_worker")).kill()
        assert legs.tokens_of(answer.result()) == expected
        load.wait_for_right_answers(3)
        wait_until_back(stack, generations, 1)
        load.wait_for_right_answers(3)
    assert load.wrong == []
    assert not load.failures
    assert load.longest_s < 60, "a request hung"
    now = legs.paths(stack.control_url)
    assert sum(now[why] - before.get(why, 0) for why in ("no_prefill", "prefill_failed")) > 0


def test_both_restarted_under_load_cost_no_wrong_token(stack: Stack) -> None:
    """Case 37. While no decode is there, requests fail; with the test above prefill restarts twice."""
    with SteadyLoad(stack) as load:
        kill_and_wait(stack, "prefill", "decode")
        load.wait_for_right_answers(3)
    assert load.wrong == []
    assert load.longest_s < 60, "a request hung"
    assert set(load.failures) <= {502, 503}, load.failures
    assert process_of(stack, "prefill_worker").is_running()
