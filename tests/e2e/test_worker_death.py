"""Workers that die are started again by themselves, and the service is what it was. Last: it restarts the shared stack.

The soak form (tests/soak) restarts prefill twenty times.
"""

import time

from tests.restarts import SteadyLoad, kill_and_wait
from tests.stack import Stack, process_of


def test_a_prefill_restarted_under_load_costs_no_wrong_token(stack: Stack) -> None:
    """Case 37, twice. The second time decode dies with it."""
    with SteadyLoad(stack) as load:
        kill_and_wait(stack, "prefill")
        load.wait_for_right_answers(3)
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
