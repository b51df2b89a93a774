"""A signature holds for exactly one handoff and for the deployment's own keys."""

import hashlib
import json
import re

import pytest
from pydantic import ValidationError

from tests.unit.wire.factories import CHANGES, HANDOFF
from wire.handoff import HANDOFF_KEY_ENV, KEY_ID_PATTERN, MAX_HANDOFF_KEYS, HandoffKeys, KVHandoff

OLD, NEW = "old-key", "new-key"


@pytest.fixture
def signed() -> KVHandoff:
    return HandoffKeys(OLD).sign(KVHandoff.model_validate(HANDOFF))


def test_a_signed_handoff_is_verified_after_its_way_over_the_wire(signed: KVHandoff) -> None:
    assert HandoffKeys(OLD).verify(signed)
    assert HandoffKeys(OLD).verify(KVHandoff.model_validate_json(signed.model_dump_json()))
    assert HandoffKeys(OLD).verify(KVHandoff.model_validate(json.loads(json.dumps(signed.model_dump()))))


def test_every_field_but_the_unsigned_ones_has_a_change_below() -> None:
    fixed = {"do_remote_prefill", "do_remote_decode"}
    assert set(KVHandoff.model_fields) - fixed - {"signature", "remote_prefill_cached_tokens"} == set(CHANGES)


@pytest.mark.parametrize("field", CHANGES)
def test_a_changed_field_is_noticed(signed: KVHandoff, field: str) -> None:
    changed = KVHandoff.model_validate(signed.model_dump() | {field: CHANGES[field]})
    assert not HandoffKeys(OLD).verify(changed)


def test_another_key_does_not_verify(signed: KVHandoff) -> None:
    assert not HandoffKeys("another").verify(signed)
    assert not HandoffKeys(OLD + "x").verify(signed)


def test_an_unsigned_or_wrongly_signed_handoff_is_not_verified(signed: KVHandoff) -> None:
    flipped = "0123456789abcdef"[int(signed.signature[0], 16) ^ 1] + signed.signature[1:]
    for signature in ("0" * 64, flipped, signed.signature[::-1]):
        assert not HandoffKeys(OLD).verify(signed.model_copy(update={"signature": signature}))


def test_a_truncated_signature_is_malformed(signed: KVHandoff) -> None:
    for cut in (signed.signature[:-1], signed.signature[:32], ""):
        with pytest.raises(ValidationError, match="signature"):
            KVHandoff.model_validate(signed.model_dump() | {"signature": cut})


def test_truncated_blocks_are_noticed(signed: KVHandoff) -> None:
    short = KVHandoff.model_validate(signed.model_dump() | {"remote_block_ids": signed.remote_block_ids[:-1]})
    assert not HandoffKeys(OLD).verify(short)


def test_the_first_key_signs_and_every_key_verifies_so_that_keys_can_be_replaced(signed: KVHandoff) -> None:
    both = HandoffKeys(f"{NEW}, {OLD}")
    assert both.verify(signed)
    assert HandoffKeys(NEW).verify(both.sign(signed))
    assert not HandoffKeys(OLD).verify(both.sign(signed))


def test_signing_again_ignores_the_signature_that_is_there(signed: KVHandoff) -> None:
    assert HandoffKeys(OLD).sign(signed) == signed


def test_prefix_hits_that_vllm_adds_later_are_not_signed(signed: KVHandoff) -> None:
    assert HandoffKeys(OLD).verify(KVHandoff.model_validate(signed.model_dump() | {"remote_prefill_cached_tokens": 7}))


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_no_key_is_an_error_that_names_the_variable(text: str) -> None:
    with pytest.raises(ValueError, match=HANDOFF_KEY_ENV):
        HandoffKeys(text)


def test_keys_are_not_shown() -> None:
    assert OLD not in repr(HandoffKeys(OLD))


def test_ids_name_the_signing_key_and_all_keys_in_their_order() -> None:
    new, old, both = HandoffKeys(NEW), HandoffKeys(OLD), HandoffKeys(f"{NEW}, {OLD}")
    assert (new.verifies, old.verifies) == ((new.signs,), (old.signs,))
    assert (both.signs, both.verifies) == (new.signs, (new.signs, old.signs))
    assert new.signs != old.signs
    assert all(re.match(KEY_ID_PATTERN, key_id) for key_id in both.verifies)


def test_an_id_is_no_part_of_a_key_nor_a_digest_that_others_make_of_it(signed: KVHandoff) -> None:
    [key_id] = HandoffKeys(OLD).verifies
    assert key_id not in OLD.encode().hex()
    assert not hashlib.sha256(OLD.encode()).hexdigest().startswith(key_id)
    assert not signed.signature.startswith(key_id)


def test_more_keys_than_a_registration_holds_are_refused_by_the_variable_s_name() -> None:
    HandoffKeys(",".join(map(str, range(MAX_HANDOFF_KEYS))))
    with pytest.raises(ValueError, match=HANDOFF_KEY_ENV):
        HandoffKeys(",".join(map(str, range(MAX_HANDOFF_KEYS + 1))))
