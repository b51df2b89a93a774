"""What a worker says of itself is strict, and what the router answers names whom it may read from."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.wire.factories import REGISTRATION
from wire.worker import HeartbeatReply, KVPeer, WorkerCheck, WorkerRegistration

CHECK = {key: REGISTRATION[key] for key in ("worker_id", "role", "model", "fingerprint")}


def test_a_registration_survives_json() -> None:
    registration = WorkerRegistration.model_validate(REGISTRATION)
    assert WorkerRegistration.model_validate_json(registration.model_dump_json()) == registration


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker_id", "a/b"),
        ("worker_id", "../x"),
        ("url", "h:1"),
        ("engine_id", ""),
        ("kv_host", ""),
        ("kv_port", 0),
        ("kv_port", "5600"),
        ("fingerprint", {"block_size": 128}),
        ("fingerprint", {str(n): "" for n in range(65)}),
        ("handoff_key", "the key itself"),
        ("handoff_key", ""),
        ("handoff_keys", [f"{n:012x}" for n in range(17)]),
        ("surprise", 1),
    ],
)
def test_a_wrong_registration_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as refusal:
        WorkerRegistration.model_validate(REGISTRATION | {field: value})
    assert {error["loc"][0] for error in refusal.value.errors()} == {field}


@pytest.mark.parametrize("field", ["engine_id", "kv_host", "kv_port", "fingerprint"])
def test_a_registration_without_what_a_peer_needs_is_refused(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        WorkerRegistration.model_validate({k: v for k, v in REGISTRATION.items() if k != field})


def test_a_key_that_is_no_id_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="handoff_keys"):
        WorkerRegistration.model_validate(REGISTRATION | {"handoff_keys": ["0" * 12, "the key itself"]})


def test_a_worker_that_does_not_say_its_keys_has_unknown_ones() -> None:
    for said in (WorkerRegistration.model_validate(REGISTRATION), WorkerCheck.model_validate(CHECK)):
        assert (said.handoff_key, said.handoff_keys) == (None, ())


def test_a_check_needs_only_what_decides_a_pair() -> None:
    assert WorkerCheck.model_validate(CHECK).worker_id == "decode-0"


@pytest.mark.parametrize("field", CHECK)
def test_a_check_without_a_field_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        WorkerCheck.model_validate({k: v for k, v in CHECK.items() if k != field})


def test_a_reply_names_peers_and_by_default_none() -> None:
    assert HeartbeatReply(ttl_s=1).peers == ()
    reply = HeartbeatReply(ttl_s=1, peers=(KVPeer(engine_id="e", host="h", port=1),))
    assert HeartbeatReply.model_validate_json(reply.model_dump_json()) == reply
