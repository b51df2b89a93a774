"""Handoffs that don't fit are refused with a reason, and lead to what the policy says: never to another's rows."""

from typing import Any

import pytest

from tests.unit.kv_transfer.factories import HANDOFF_ID, digest, handoff, prompt
from tests.unit.kv_transfer.test_decode_side import Scene
from wire.handoff import HandoffKeys, KVHandoff

FORGED = HandoffKeys("another deployment").sign(handoff())
TAMPERED = handoff().model_copy(update={"remote_block_ids": [7, 3, 8]})
FORGED_LONG = HandoffKeys("another deployment").sign(handoff(700))
OTHER_PROMPT = handoff(prompt_digest=digest(prompt(300, first=1)))
REFUSED = [
    pytest.param(FORGED, "signature", id="signed by another deployment"),
    pytest.param(FORGED_LONG, "signature", id="signed by another deployment for more tokens than there are"),
    pytest.param(TAMPERED, "signature", id="changed after it was signed"),
    pytest.param(handoff(wire_version=1), "version", id="of an old version"),
    pytest.param(handoff(wire_version=3), "version", id="of a later version"),
    pytest.param(OTHER_PROMPT, "prompt", id="of another prompt of equal length"),
    pytest.param(handoff(299), "prompt", id="of a shorter prompt"),
    pytest.param(handoff(128), "prompt", id="of a much shorter prompt"),
    pytest.param(handoff(301), "prompt", id="of a longer prompt"),
    pytest.param(handoff(700), "prompt", id="of a much longer prompt"),
    pytest.param(handoff(remote_block_ids=[7, 3]), "blocks", id="of too few blocks"),
    pytest.param(handoff(remote_block_ids=[7, 3, 9, 1]), "blocks", id="of too many blocks"),
    pytest.param(handoff(remote_engine_id="prefill-9-foreign"), "unregistered", id="of an unknown engine"),
    pytest.param(handoff(remote_host="10.9.9.9"), "unregistered", id="at another address"),
]


def met(*, recomputes: bool) -> Scene:
    made = Scene(recomputes=recomputes)
    made.meet()
    made.network.dialled.clear()
    return made


@pytest.mark.parametrize(("refused", "reason"), REFUSED)
@pytest.mark.parametrize("num_local", [0, 128, 256])
def test_under_recompute_the_prompt_is_computed_here(refused: KVHandoff, reason: str, num_local: int) -> None:
    decode = met(recomputes=True)
    wish = decode.arrive(refused)
    assert decode.schedule(wish, num_local) == 0
    assert decode.schedule(wish, num_local) == 0
    assert decode.pulls() == []
    assert decode.refusals() == {reason: 1}
    assert decode.recomputes() == 1
    assert decode.courier.kept == {}


@pytest.mark.parametrize(("refused", "reason"), REFUSED)
@pytest.mark.parametrize("num_local", [0, 128, 256])
def test_under_fail_the_request_fails_in_its_first_step(refused: KVHandoff, reason: str, num_local: int) -> None:
    decode = met(recomputes=False)
    wish = decode.arrive(refused)
    num_external = decode.schedule(wish, num_local)
    assert num_external, "vLLM fails a request only for tokens that should have come from elsewhere"
    [pull] = decode.pulls()
    assert pull.refusal is not None
    assert pull.refusal.startswith(f"{reason}: ")
    decode.end_pull(is_failed=True)
    assert decode.refusals() == {reason: 1}
    assert decode.recomputes() == 0
    assert decode.courier.kept == {}


@pytest.mark.parametrize(("refused", "reason"), REFUSED)
@pytest.mark.parametrize("recomputes", [True, False])
def test_ours_is_released_once_and_a_stranger_s_never(refused: KVHandoff, reason: str, recomputes: bool) -> None:
    decode = met(recomputes=recomputes)
    wish = decode.arrive(refused)
    decode.schedule(wish)
    decode.end_pull(is_failed=True)
    decode.side.request_finished(wish)
    assert decode.courier.released == ([] if reason == "signature" else [(HANDOFF_ID, "req")])


@pytest.mark.parametrize(("refused", "reason"), REFUSED)
def test_a_refused_handoff_dials_nobody(refused: KVHandoff, reason: str) -> None:
    decode = met(recomputes=True)
    decode.schedule(decode.arrive(refused))
    decode.dialler.run()
    assert decode.network.dialled == []


@pytest.mark.parametrize(
    "change",
    [
        {"handoff_id": None},
        {"remote_block_ids": None},
        {"remote_port": "5600"},
        {"remote_engine_id": ""},
        {"remote_prefill_cached_tokens": 301},
        {"surprise": 1},
        {"do_remote_decode": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("recomputes", [True, False])
def test_a_malformed_handoff_is_counted_and_leaves_the_prompt_to_decode(
    change: dict[str, Any], recomputes: bool
) -> None:
    decode = met(recomputes=recomputes)
    wish = decode.arrive(handoff().model_dump(exclude_none=True) | change)
    assert decode.schedule(wish) == 0
    assert decode.pulls() == []
    assert decode.refusals() == {"malformed": 1}
    assert decode.recomputes() == int(recomputes)
    assert decode.courier.released == []


def test_the_same_tokens_under_another_salt_are_another_prompt() -> None:
    decode = met(recomputes=True)
    assert decode.schedule(decode.arrive(handoff(), cache_salt="tenant")) == 0
    assert decode.refusals() == {"prompt": 1}


def test_a_prompt_without_token_ids_takes_no_handoff() -> None:
    decode = met(recomputes=True)
    assert decode.schedule(decode.arrive(handoff(), prompt_token_ids=None)) == 0
    assert decode.refusals() == {"prompt": 1}


def test_prefix_hits_that_prefill_s_engine_added_do_not_break_the_signature() -> None:
    decode = met(recomputes=True)
    given = handoff().model_copy(update={"remote_prefill_cached_tokens": 256})
    assert decode.schedule(decode.arrive(given)) == 300
