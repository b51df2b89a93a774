"""What the connector in the engine core decides: what is pulled, held, refused and given back."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from kv_transfer.connector_scheduler import SchedulerSide

BLOCK = 128
HANDOFF_ID = "ab" * 16


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def side(clock: Clock) -> SchedulerSide:
    transfer = SimpleNamespace(kv_connector_extra_config={"port": 5600, "lease_s": 10}, engine_id="prefill-0-life1")
    config = SimpleNamespace(kv_transfer_config=transfer, parallel_config=SimpleNamespace(tensor_parallel_size=1))
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=BLOCK), layer_names=["pool"])
    cache = SimpleNamespace(kv_cache_groups=[group], kv_cache_tensors=[SimpleNamespace(block_stride=1440)])
    return SchedulerSide(config, cache, clock=clock, wall_clock=lambda: 1_000_000.0)


def request(num_tokens: int, params: object, status: RequestStatus = RequestStatus.FINISHED_LENGTH_CAPPED) -> Any:
    return SimpleNamespace(request_id="req", num_prompt_tokens=num_tokens, kv_transfer_params=params, status=status)


def ask(num_readers: int = 1) -> dict[str, Any]:
    return {"do_remote_decode": True, "handoff_id": HANDOFF_ID, "num_readers": num_readers}


def grant(side: SchedulerSide, num_tokens: int = 300, blocks: list[int] | None = None) -> dict[str, Any]:
    is_held, params = side.request_finished(request(num_tokens, ask()), blocks or [7, 3, 9])
    assert is_held
    assert params is not None
    return params


def allocated(block_ids: list[int]) -> Any:
    return SimpleNamespace(get_block_ids=lambda: (block_ids,))


# Prefill


def test_a_finished_prompt_is_held_and_its_blocks_are_named(side: SchedulerSide) -> None:
    params = grant(side)
    assert params["remote_block_ids"] == [7, 3, 9]
    assert params["remote_num_tokens"] == 300
    assert params["remote_engine_id"] == "prefill-0-life1"
    assert params["handoff_id"] == HANDOFF_ID
    assert params["lease_expires_unix_s"] == 1_000_010.0
    [hold] = side.build_meta(0).holds
    assert (hold.request_id, hold.handoff_id, hold.num_readers) == ("req", HANDOFF_ID, 1)


def test_the_block_that_the_legs_own_token_opened_is_not_handed_off(side: SchedulerSide) -> None:
    assert grant(side, num_tokens=256, blocks=[7, 3, 9])["remote_block_ids"] == [7, 3]


@pytest.mark.parametrize("status", [RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR])
def test_an_aborted_prompt_is_not_held(side: SchedulerSide, status: RequestStatus) -> None:
    assert side.request_finished(request(300, ask(), status), [1, 2, 3]) == (False, None)
    assert side.build_meta(0).holds == []


def test_a_prompt_that_ends_at_its_first_token_is_held_too(side: SchedulerSide) -> None:
    is_held, _ = side.request_finished(request(300, ask(), RequestStatus.FINISHED_STOPPED), [1, 2, 3])
    assert is_held


@pytest.mark.parametrize("params", [None, {}, "x", 7, ["do_remote_decode"], {"do_remote_decode": False}])
def test_a_request_without_a_handoff_is_left_alone(side: SchedulerSide, params: object) -> None:
    assert side.request_finished(request(300, params), [1, 2, 3]) == (False, None)
    assert side.get_num_new_matched_tokens(request(300, params), 0) == (0, False)


@pytest.mark.parametrize("change", [{"handoff_id": "short"}, {"num_readers": 0}, {"surprise": 1}])
def test_a_malformed_wish_is_refused_and_counted(side: SchedulerSide, change: dict[str, Any]) -> None:
    assert side.request_finished(request(300, ask() | change), [1, 2, 3]) == (False, None)
    stats = side.take_stats()
    assert stats is not None
    assert stats.data["refused"] == 1


def test_an_unread_lease_is_dropped_after_its_time_and_counted(side: SchedulerSide, clock: Clock) -> None:
    grant(side)
    clock.now += 9.9
    assert side.build_meta(0).drops == []
    clock.now += 0.2
    assert side.build_meta(0).drops == ["req"]
    side.on_worker_output(SimpleNamespace(finished_sending={"req"}))
    stats = side.take_stats()
    assert stats is not None
    assert stats.data["leases_expired"] == 1
    assert stats.data["leases"] == 0


# Decode


def test_decode_pulls_every_block_of_a_cold_prompt(side: SchedulerSide) -> None:
    wish = request(300, grant(side))
    assert side.get_num_new_matched_tokens(wish, 0) == (300, True)
    assert side.get_num_new_matched_tokens(wish, 0) == (300, True), "may be asked repeatedly"
    side.update_state_after_alloc(wish, allocated([4, 5, 6]), 300)
    [pull] = side.build_meta(0).pulls
    assert (pull.block_ids, pull.remote_block_ids) == ([4, 5, 6], [7, 3, 9])


def test_decode_pulls_only_what_its_own_cache_lacks(side: SchedulerSide) -> None:
    wish = request(300, grant(side))
    assert side.get_num_new_matched_tokens(wish, 128) == (172, True)
    side.update_state_after_alloc(wish, allocated([4, 5, 6]), 172)
    [pull] = side.build_meta(0).pulls
    assert (pull.block_ids, pull.remote_block_ids) == ([5, 6], [3, 9])


def test_a_handoff_is_acted_on_once_also_after_a_preemption(side: SchedulerSide) -> None:
    wish = request(300, grant(side))
    side.update_state_after_alloc(wish, allocated([4, 5, 6]), 300)
    assert side.get_num_new_matched_tokens(wish, 0) == (0, False)
    side.update_state_after_alloc(wish, allocated([4, 5, 6]), 0)
    assert len(side.build_meta(0).pulls) == 1


def test_a_prompt_that_decode_holds_already_only_tells_prefill_to_let_go(side: SchedulerSide) -> None:
    wish = request(300, grant(side))
    side.update_state_after_alloc(wish, allocated([4, 5, 6]), 0)
    [pull] = side.build_meta(0).pulls
    assert (pull.block_ids, pull.remote_block_ids) == ([], [])


def test_a_request_that_ends_before_it_was_scheduled_tells_prefill_to_let_go(side: SchedulerSide) -> None:
    wish = request(300, grant(side), RequestStatus.FINISHED_ABORTED)
    assert side.request_finished(wish, []) == (False, None)
    [pull] = side.build_meta(0).pulls
    assert pull.block_ids == []


@pytest.mark.parametrize(
    "change",
    [
        {"wire_version": 99},
        {"tp_size": 2},
        {"remote_num_tokens": 299},
        {"remote_block_ids": [7, 3]},
        {"remote_block_ids": [7, 3, 9, 1]},
        {"remote_block_ids": None},
        {"remote_engine_id": ""},
        {"remote_port": "5600"},
        {"handoff_id": None},
        {"surprise": 1},
    ],
    ids=lambda change: "-".join(f"{k}={v}" for k, v in change.items()),
)
def test_a_handoff_that_does_not_fit_is_refused_and_the_prompt_computed_here(
    side: SchedulerSide, change: dict[str, Any]
) -> None:
    wish = request(300, grant(side) | change)
    assert side.get_num_new_matched_tokens(wish, 0) == (0, False)
    side.update_state_after_alloc(wish, allocated([4, 5, 6]), 0)
    assert side.build_meta(0).pulls == []
    stats = side.take_stats()
    assert stats is not None
    assert stats.data["refused"] == 1
