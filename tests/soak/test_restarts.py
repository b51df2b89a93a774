"""Prefill restarted twenty times under steady load, with each policy for KV that did not cross."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import legs
from tests.restarts import SteadyLoad, kill_and_wait
from tests.stack import running_stack

NUM_RESTARTS = 20


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_prefill_restarted_twenty_times_costs_no_wrong_token(
    checkpoint: Path, tmp_path: Path, policy: str, note: Callable[[str], None]
) -> None:
    settings = (f"name=restarts-{policy}", f"kv_transfer.load_failure_policy={policy}", "restart.max_crashes=50")
    with running_stack(checkpoint, tmp_path / "stack.log", *settings) as stack:
        with SteadyLoad(stack) as load:
            for _ in range(NUM_RESTARTS if policy == "recompute" else NUM_RESTARTS // 4):
                kill_and_wait(stack, "prefill")
                load.wait_for_pair(10)
                load.wait_for_right_answers(2)
        paths = {reason: value for reason, value in legs.paths(stack.control_url).items() if value}
        note(f"{policy}: {load.right} right, failures {dict(load.failures)}, longest {load.longest_s:.1f} s, {paths}")
        assert load.wrong == []
        assert load.longest_s < 60, "a request hung"
        assert legs.no_lease_within(stack.worker("prefill"), 2)
        if policy == "recompute":
            assert not load.failures, "decode was there all the time"
            assert paths["no_prefill"] + paths["prefill_failed"] >= NUM_RESTARTS, "a restart was not noticed"
            assert paths["handoff"] > 10 * NUM_RESTARTS
        else:
            assert set(load.failures) <= {502, 503}
            assert sum(load.failures.values()) > 0, "no restart was noticed"
            assert legs.samples(stack.worker("decode"))["tandem_kv_recomputes_total"] == 0
            assert not {"no_prefill", "prefill_failed"} & paths.keys()
