"""A handoff is strict on the wire: missing, mistyped or out-of-range values are refused by name."""

import math

import pytest
from pydantic import ValidationError

from tests.unit.wire.factories import HANDOFF
from wire.handoff import HandoffRequest, KVHandoff, ReleaseRequest, prompt_digest, unsigned
from wire.refusal import HTTP_STATUS, Refusal


def test_a_handoff_survives_json() -> None:
    handoff = KVHandoff.model_validate(HANDOFF)
    assert KVHandoff.model_validate_json(handoff.model_dump_json()) == handoff
    assert handoff.model_dump(exclude_none=True) == HANDOFF


@pytest.mark.parametrize("field", HANDOFF)
def test_a_handoff_without_a_field_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        KVHandoff.model_validate({k: v for k, v in HANDOFF.items() if k != field})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("wire_version", "2"),
        ("handoff_id", "0" * 31),
        ("handoff_id", "../../../../../../../../etc/passwd"),
        ("num_readers", 0),
        ("remote_engine_id", ""),
        ("remote_port", 0),
        ("remote_port", 65536),
        ("remote_port", "5600"),
        ("remote_block_ids", []),
        ("remote_block_ids", [-1]),
        ("remote_block_ids", ["3"]),
        ("remote_block_ids", [[3]]),
        ("remote_num_tokens", 0),
        ("prompt_digest", "d" * 63),
        ("prompt_digest", "D" * 64),
        ("tp_size", True),
        ("lease_s", 0),
        ("lease_s", "30"),
        ("lease_s", 3601),
        ("lease_s", math.inf),
        ("lease_s", math.nan),
        ("lease_slot", -1),
        ("lease_slot", (1 << 20) + 1),
        ("lease_serial", 0),
        ("lease_serial", 1 << 63),
        ("signature", ""),
        ("signature", "0" * 64 + "\n"),
        ("do_remote_prefill", False),
        ("do_remote_prefill", 1),
        ("do_remote_decode", True),
        ("do_remote_decode", 0),
        ("remote_prefill_cached_tokens", -1),
        ("remote_prefill_cached_tokens", 301),
        ("surprise", 1),
    ],
)
def test_a_handoff_with_a_wrong_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refusal:
        KVHandoff.model_validate(HANDOFF | {field: value})
    assert {error["loc"][0] for error in refusal.value.errors()} == {field}


@pytest.mark.parametrize("num_hits", [0, 300])
def test_prefix_hits_up_to_the_whole_prompt_are_taken(num_hits: int) -> None:
    handoff = KVHandoff.model_validate(HANDOFF | {"remote_prefill_cached_tokens": num_hits})
    assert handoff.remote_prefill_cached_tokens == num_hits


def test_an_unsigned_handoff_has_a_signature_that_is_none() -> None:
    assert unsigned(**{k: v for k, v in HANDOFF.items() if k != "signature"}).signature == "0" * 64


def test_the_ask_for_a_handoff_has_one_reader_and_the_workers_own_lease() -> None:
    ask = HandoffRequest(handoff_id="a" * 32)
    assert (ask.num_readers, ask.lease_s) == (1, None)


@pytest.mark.parametrize("lease_s", [0, -1, 3601, math.nan])
def test_an_ask_for_a_senseless_lease_is_refused(lease_s: float) -> None:
    with pytest.raises(ValidationError, match="lease_s"):
        HandoffRequest(handoff_id="a" * 32, lease_s=lease_s)


@pytest.mark.parametrize("reader", ["", "x" * 513])
def test_a_release_names_a_reader_or_none(reader: str) -> None:
    assert ReleaseRequest(handoff_id="a" * 32).reader is None
    with pytest.raises(ValidationError, match="reader"):
        ReleaseRequest(handoff_id="a" * 32, reader=reader)


def test_a_digest_names_one_prompt() -> None:
    assert prompt_digest([1, 2, 3]) == prompt_digest((1, 2, 3))
    KVHandoff.model_validate(HANDOFF | {"prompt_digest": prompt_digest([1, 2, 3])})


@pytest.mark.parametrize(
    ("token_ids", "salt"),
    [
        ([1, 2], ""),
        ([1, 2, 3, 0], ""),
        ([3, 2, 1], ""),
        ([1, 2, 4], ""),
        ([1, 2, 3 + (1 << 32)], ""),
        ([1, 2, 3], "tenant-a"),
        ([], ""),
    ],
)
def test_another_prompt_or_salt_has_another_digest(token_ids: list[int], salt: str) -> None:
    assert prompt_digest(token_ids, salt) != prompt_digest([1, 2, 3])


def test_a_salt_with_the_bytes_of_a_token_is_not_that_token() -> None:
    token = int.from_bytes(b"saltsalt", "little")
    assert prompt_digest([1], "saltsalt") != prompt_digest([1, token])


def test_refusals_that_answer_a_request_are_client_errors() -> None:
    assert set(HTTP_STATUS) <= set(Refusal)
    assert all(400 <= status < 500 for status in HTTP_STATUS.values())
