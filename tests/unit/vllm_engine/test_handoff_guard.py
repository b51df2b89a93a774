"""A bad handoff is answered with its reason before vLLM sees the request; a good one passes once."""

import json
from typing import Any

import pytest

from tests.unit.vllm_engine.factories import ASK, HANDOFF_ID, PEER, handoff, params
from tests.unit.vllm_engine.guarded import Guarded, Reply, refusals_counted
from vllm_engine.handoff_guard import MEMORY_LIMIT, MEMORY_TTL_S, UsedIds
from wire.handoff import HandoffKeys
from wire.refusal import HTTP_STATUS, Refusal
from wire.worker import WorkerRole

FOREIGN = HandoffKeys("another deployment").sign(handoff()).model_dump(exclude_none=True)


def assert_refused(reply: Reply, reason: Refusal, field: str = "") -> None:
    assert reply.status == HTTP_STATUS[reason]
    assert reply.refusal == reason.value
    assert reply.headers[b"content-type"] == b"application/json"
    assert int(reply.headers[b"content-length"]) == len(reply.body)
    error = json.loads(reply.body)["error"]
    assert error["param"] == "kv_transfer_params"
    assert error["code"] == f"handoff_{reason.value}"
    assert field in error["message"]


async def test_a_good_handoff_passes() -> None:
    worker = Guarded()
    reply = await worker.post(params())
    assert (reply.status, reply.refusal, reply.body) == (200, None, b"vLLM's answer")
    assert worker.asked == [(PEER.engine_id, PEER.host, PEER.port)]


@pytest.mark.parametrize(
    ("given", "reason", "field"),
    [
        (params() | {"surprise": 1}, Refusal.MALFORMED, "surprise"),
        (params() | {"remote_block_ids": []}, Refusal.MALFORMED, "remote_block_ids"),
        (params() | {"remote_port": "5600"}, Refusal.MALFORMED, "remote_port"),
        (params() | {"remote_prefill_cached_tokens": 301}, Refusal.MALFORMED, "remote_prefill_cached_tokens"),
        ({"do_remote_prefill": True}, Refusal.MALFORMED, "handoff_id"),
        (ASK, Refusal.MALFORMED, "wire_version"),
        ({}, Refusal.MALFORMED, "wire_version"),
        ([], Refusal.MALFORMED, "object"),
        ("do_remote_prefill", Refusal.MALFORMED, "object"),
        (7, Refusal.MALFORMED, "object"),
        (False, Refusal.MALFORMED, "object"),
        (FOREIGN, Refusal.SIGNATURE, "signature"),
        (params() | {"signature": "0" * 64}, Refusal.SIGNATURE, "signature"),
        (params() | {"remote_block_ids": [7, 3, 8]}, Refusal.SIGNATURE, "signature"),
        (params(wire_version=1), Refusal.VERSION, "wire_version is 1"),
        (params(wire_version=3), Refusal.VERSION, "wire_version is 3"),
        (params(remote_engine_id="prefill-9-other"), Refusal.UNREGISTERED, "not registered"),
        (params(remote_host="10.9.9.9"), Refusal.UNREGISTERED, "not registered"),
        (params(remote_port=5601), Refusal.UNREGISTERED, "not registered"),
    ],
)
async def test_a_bad_handoff_is_refused_by_name_and_counted(given: Any, reason: Refusal, field: str) -> None:
    worker, before = Guarded(), refusals_counted(reason.value)
    assert_refused(await worker.post(given), reason, field)
    assert worker.inner.bodies == []
    assert refusals_counted(reason.value) == before + 1


async def test_only_what_is_signed_is_asked_about() -> None:
    worker = Guarded()
    for given in (FOREIGN, params(wire_version=1), params() | {"surprise": 1}):
        await worker.post(given)
    assert worker.asked == []


async def test_a_handoff_passes_once() -> None:
    worker = Guarded()
    assert (await worker.post(params())).status == 200
    assert_refused(await worker.post(params()), Refusal.REPLAYED, "handoff_id")
    assert (await worker.post(params(handoff_id="c" * 32))).status == 200
    assert len(worker.inner.bodies) == 2


async def test_an_id_that_was_refused_is_not_used_up() -> None:
    worker = Guarded()
    worker.registered.clear()
    assert_refused(await worker.post(params()), Refusal.UNREGISTERED)
    worker.registered.add((PEER.engine_id, PEER.host, PEER.port))
    assert (await worker.post(params())).status == 200


async def test_a_prefill_worker_takes_an_ask_once() -> None:
    worker = Guarded(WorkerRole.PREFILL)
    assert (await worker.post(ASK)).status == 200
    assert_refused(await worker.post(ASK), Refusal.REPLAYED, "handoff_id")
    assert worker.asked == []


@pytest.mark.parametrize(
    "given",
    [params(), ASK | {"handoff_id": "short"}, ASK | {"num_readers": 0}, ASK | {"lease_s": "long"}, ASK | {"x": 1}, {}],
)
async def test_a_prefill_worker_refuses_what_is_no_ask(given: dict[str, Any]) -> None:
    worker = Guarded(WorkerRole.PREFILL)
    assert_refused(await worker.post(given), Refusal.MALFORMED)
    assert worker.inner.bodies == []


@pytest.mark.parametrize("role", list(WorkerRole))
async def test_a_request_without_a_handoff_passes(role: WorkerRole) -> None:
    worker = Guarded(role)
    assert (await worker.post(None)).status == 200
    assert (await worker.post_bytes(b'{"prompt": "x"}')).status == 200


async def test_a_refusal_names_no_prompt_and_no_secret() -> None:
    worker = Guarded()
    body = {"prompt": "the user's secret", "kv_transfer_params": params() | {"remote_port": "the user's secret"}}
    reply = await worker.post_bytes(json.dumps(body).encode())
    assert b"secret" not in reply.body


def test_every_reason_has_a_counter_from_the_start() -> None:
    for reason in HTTP_STATUS:
        assert refusals_counted(reason.value) is not None


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_used_ids_are_remembered_for_their_time() -> None:
    clock = Clock()
    used = UsedIds(clock)
    assert used.add(HANDOFF_ID)
    clock.now = MEMORY_TTL_S
    assert not used.add(HANDOFF_ID)
    clock.now = MEMORY_TTL_S + 1
    assert used.add(HANDOFF_ID)


def test_used_ids_are_bounded_and_the_oldest_goes_first() -> None:
    used = UsedIds(Clock())
    for number in range(MEMORY_LIMIT + 2):
        assert used.add(str(number))
    assert not used.add(str(MEMORY_LIMIT))
    assert used.add("0")
