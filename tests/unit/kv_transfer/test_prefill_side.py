"""Which finished prompts prefill holds, what its signed handoffs say, and when they end."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.lease import DropReason
from kv_transfer.notes import Note
from kv_transfer.prefill_side import PrefillSide, digest_of
from kv_transfer.settings import ConnectorConfig, ConnectorSettings
from kv_transfer.step import Hold, StepMetadata
from tests.unit.kv_transfer.factories import BLOCK, FINGERPRINT, HANDOFF_ID, KEYS, Clock, prompt, request
from wire.handoff import HandoffKeys, KVHandoff
from wire.versions import WIRE_VERSION

ASK: dict[str, Any] = {"do_remote_decode": True, "handoff_id": HANDOFF_ID, "num_readers": 2}
BLOCKS = [7, 3, 9]


class Scene:
    """One prefill engine's scheduler, without vLLM around it."""

    def __init__(self) -> None:
        config = ConnectorConfig(host="10.0.0.7", port=5600, lease_s=10, fingerprint=FINGERPRINT)
        settings = ConnectorSettings(config, "prefill-0-life1", 2, 4, recomputes=True)
        self.clock, self.stats = Clock(), RowConnectorStats()
        self.side = PrefillSide(settings, BLOCK, KEYS, self.clock)

    def finish(self, asked: dict[str, Any] = ASK, blocks: list[int] | None = None, **changes: Any) -> Any:
        ended = request(asked, **changes)
        return self.side.request_finished(ended, BLOCKS if blocks is None else blocks, asked, self.stats)

    def granted(self, **changes: Any) -> KVHandoff:
        is_held, params = self.finish(**changes)
        assert is_held
        return KVHandoff.model_validate(params)

    def step(self, *preempted: str) -> StepMetadata:
        meta = StepMetadata()
        self.side.fill(meta, set(preempted), self.stats)
        return meta


@pytest.fixture
def prefill() -> Scene:
    return Scene()


def test_a_handoff_says_where_the_blocks_are_and_for_how_long_they_stay(prefill: Scene) -> None:
    handoff = prefill.granted()
    assert handoff.remote_block_ids == BLOCKS
    assert handoff.remote_num_tokens == 300
    assert (handoff.remote_host, handoff.remote_port) == ("10.0.0.7", 5600)
    assert (handoff.remote_engine_id, handoff.remote_request_id) == ("prefill-0-life1", "req")
    assert (handoff.handoff_id, handoff.num_readers, handoff.lease_s) == (HANDOFF_ID, 2, 10)
    assert (handoff.wire_version, handoff.tp_size) == (WIRE_VERSION, 2)


def test_a_handoff_is_signed_with_the_deployment_s_key_and_no_other(prefill: Scene) -> None:
    handoff = prefill.granted()
    assert KEYS.verify(handoff)
    assert not HandoffKeys("another deployment").verify(handoff)
    assert not KEYS.verify(handoff.model_copy(update={"remote_block_ids": [7, 3, 8]}))


def test_a_handoff_is_bound_to_its_prompt(prefill: Scene) -> None:
    handoff = prefill.granted()
    assert handoff.prompt_digest == digest_of(request(None))
    others: list[Any] = [
        request(None, token_ids=prompt(300, first=1)),
        request(None, cache_salt="tenant"),
        request(None, lora_request=SimpleNamespace(lora_name="adapter")),
    ]
    digests = {digest_of(other) for other in others}
    assert len(digests) == 3
    assert handoff.prompt_digest not in digests


def test_the_ranks_hear_of_the_hold_once_with_its_place_in_the_fence(prefill: Scene) -> None:
    handoff = prefill.granted()
    assert prefill.step().holds == [Hold("req", HANDOFF_ID, 2, handoff.lease_slot, handoff.lease_serial)]
    assert prefill.step().holds == []


@pytest.mark.parametrize(
    ("num_tokens", "blocks", "named"),
    [(256, [7, 3, 9], [7, 3]), (257, [7, 3, 9], [7, 3, 9]), (1, [7], [7]), (128, [7, 3], [7])],
)
def test_a_block_that_the_leg_s_own_token_opened_is_not_handed_off(
    prefill: Scene, num_tokens: int, blocks: list[int], named: list[int]
) -> None:
    assert prefill.granted(token_ids=prompt(num_tokens), blocks=blocks).remote_block_ids == named


@pytest.mark.parametrize("status", [RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED])
def test_a_prompt_whose_first_token_ends_the_answer_is_held_too(prefill: Scene, status: RequestStatus) -> None:
    assert prefill.granted(status=status).remote_num_tokens == 300


@pytest.mark.parametrize(
    "status", [RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR, RequestStatus.FINISHED_IGNORED]
)
def test_a_prompt_that_was_not_computed_to_its_end_is_not_held(prefill: Scene, status: RequestStatus) -> None:
    assert prefill.finish(status=status) == (False, None)
    assert prefill.step().holds == []
    assert len(prefill.side.leases) == 0
    assert prefill.stats.is_empty()


@pytest.mark.parametrize("params", [{}, {"do_remote_decode": False}, {"do_remote_prefill": True}])
def test_a_request_that_asks_for_no_handoff_is_left_alone(prefill: Scene, params: dict[str, Any]) -> None:
    assert prefill.finish(params) == (False, None)
    assert prefill.stats.is_empty()


@pytest.mark.parametrize(
    "change", [{"handoff_id": "short"}, {"num_readers": 0}, {"surprise": 1}, {"lease_s": -1}, {"do_remote_decode": 7}]
)
def test_a_malformed_wish_is_refused_and_counted(prefill: Scene, change: dict[str, Any]) -> None:
    assert prefill.finish(ASK | change) == (False, None)
    assert prefill.stats.data == {"refusals:malformed": 1}
    assert len(prefill.side.leases) == 0


def test_a_prompt_without_token_ids_has_no_digest_and_is_not_held(prefill: Scene) -> None:
    assert prefill.finish(prompt_token_ids=None) == (False, None)
    assert len(prefill.side.leases) == 0


def test_a_request_id_of_any_length_never_ends_the_engine(prefill: Scene) -> None:
    prefill.finish(request_id="cmpl-" + "x" * 2000)
    assert len(prefill.side.leases) == len(prefill.step().holds), "nothing is leased that nobody holds"


@pytest.mark.parametrize(("asked_s", "lease_s"), [(None, 10), (3.0, 3), (60.0, 10)])
def test_a_router_may_ask_for_a_shorter_lease_only(prefill: Scene, asked_s: float | None, lease_s: float) -> None:
    assert prefill.granted(asked=ASK | {"lease_s": asked_s}).lease_s == lease_s
    prefill.clock.now += lease_s - 0.1
    assert prefill.step().drops == []
    prefill.clock.now += 0.1
    assert prefill.step().drops == ["req"]


def test_a_handoff_id_is_used_once(prefill: Scene) -> None:
    prefill.granted()
    assert prefill.finish(request_id="req2") == (False, None)
    assert len(prefill.side.leases) == 1


def test_a_lease_that_runs_out_is_dropped_once_and_counted_until_the_ranks_confirm(prefill: Scene) -> None:
    prefill.granted()
    prefill.clock.now += 10
    assert prefill.step().drops == ["req"]
    assert prefill.step().drops == []
    assert len(prefill.side.leases) == 1
    prefill.side.leases.end("req")
    assert prefill.stats.data == {"leases_granted": 1, f"leases_ended:{DropReason.EXPIRED.value}": 1}


def test_a_release_of_all_readers_drops_the_blocks_with_the_next_step(prefill: Scene) -> None:
    prefill.granted()
    assert prefill.side.release(HANDOFF_ID, None)
    assert prefill.step().drops == ["req"]
    assert prefill.stats.data[f"leases_ended:{DropReason.RELEASED.value}"] == 1


def test_a_release_that_overtakes_the_prompt_s_end_lets_nothing_be_held(prefill: Scene) -> None:
    assert not prefill.side.release(HANDOFF_ID, None)
    assert prefill.finish() == (False, None)
    assert prefill.step() == StepMetadata()


def test_a_release_of_one_reader_is_told_to_the_ranks_and_holds_the_lease(prefill: Scene) -> None:
    prefill.granted()
    assert prefill.side.release(HANDOFF_ID, "choice-0")
    meta = prefill.step()
    assert meta.notes == [Note(HANDOFF_ID, "choice-0")]
    assert meta.drops == []
    assert prefill.step().notes == []


def test_a_preempted_prompt_s_lease_is_revoked_before_its_blocks_are_written(prefill: Scene) -> None:
    handoff = prefill.granted()
    meta = prefill.step("req", "another")
    assert meta.revoked == [(handoff.lease_slot, handoff.lease_serial)]
    assert meta.drops == []
    assert len(prefill.side.leases) == 0
    assert prefill.stats.data[f"leases_ended:{DropReason.REVOKED.value}"] == 1
    prefill.clock.now += 10
    assert prefill.step() == StepMetadata()


@pytest.mark.parametrize("blocks", [[], [7], [7, 3]])
def test_a_prompt_whose_blocks_were_taken_while_its_last_step_ran_is_not_held(
    prefill: Scene, blocks: list[int]
) -> None:
    # vLLM schedules ahead: a request may be preempted, and then end by the step that was under way.
    assert prefill.finish(blocks=blocks) == (False, None)
    assert len(prefill.side.leases) == 0
    assert prefill.step().holds == []
