"""A mock decode takes a handoff once, whole, and for its own prompt, in both dialects; all else is counted."""

import json
from typing import Any

import pytest

from bench.router.leases import LeaseBook, find_params
from wire.handoff import HandoffRequest, KVHandoff

TAG, OTHER_TAG, PROMPT_BYTES = b"00000007", b"00000008", 1200
TANDEM_ASK: dict[str, Any] = json.loads(HandoffRequest(handoff_id="a" * 32).model_dump_json(exclude_none=True))
STOCK_ASK: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
BOTH = pytest.mark.parametrize("ask", [TANDEM_ASK, STOCK_ASK], ids=["tandem", "stock"])


def granted(book: LeaseBook, ask: dict[str, Any]) -> dict[str, Any]:
    answer = book.grant(ask, TAG, PROMPT_BYTES)
    assert answer is not None
    params: dict[str, Any] = json.loads(answer)
    return params


@BOTH
def test_a_handoff_that_comes_back_is_read_and_leaves_nothing(ask: dict[str, Any]) -> None:
    book = LeaseBook()
    params = granted(book, ask)
    assert book.num_live == 1
    book.read(params, TAG, PROMPT_BYTES)
    assert book.faults.total() == 0
    assert (book.num_granted, book.num_read, book.num_live) == (1, 1, 0)


@BOTH
def test_every_grant_has_an_id_of_its_own(ask: dict[str, Any]) -> None:
    book = LeaseBook()
    first = granted(book, ask)
    second = granted(book, ask | {"handoff_id": "b" * 32} if "handoff_id" in ask else ask)
    assert first != second
    assert book.num_live == 2


def test_our_dialect_is_a_handoff_by_the_wires_own_rules() -> None:
    handoff = KVHandoff.model_validate(granted(LeaseBook(), TANDEM_ASK))
    assert handoff.handoff_id == "a" * 32
    assert len(handoff.remote_block_ids) == 3


@pytest.mark.parametrize("params", [None, {}, STOCK_ASK, {"do_remote_prefill": 1}])
def test_a_decode_without_a_handoff_is_a_silent_recompute(params: dict[str, Any] | None) -> None:
    book = LeaseBook()
    book.read(params, TAG, PROMPT_BYTES)
    assert (book.faults.no_handoff, book.faults.total()) == (1, 1)


@BOTH
def test_a_handoff_is_read_once(ask: dict[str, Any]) -> None:
    book = LeaseBook()
    params = granted(book, ask)
    book.read(params, TAG, PROMPT_BYTES)
    book.read(params, TAG, PROMPT_BYTES)
    assert (book.faults.wrong_handoff, book.faults.total()) == (1, 1)


@BOTH
@pytest.mark.parametrize("name", ["remote_engine_id", "remote_block_ids", "remote_host", "remote_port", "tp_size"])
def test_what_prefill_said_must_come_back_unchanged(ask: dict[str, Any], name: str) -> None:
    book = LeaseBook()
    book.read(granted(book, ask) | {name: "other"}, TAG, PROMPT_BYTES)
    assert (book.faults.wrong_handoff, book.faults.total()) == (1, 1)


@BOTH
def test_members_that_a_router_adds_are_no_fault(ask: dict[str, Any]) -> None:
    book = LeaseBook()
    book.read(granted(book, ask) | {"of_the_router": 1}, TAG, PROMPT_BYTES)
    assert book.faults.total() == 0


@pytest.mark.parametrize(("tag", "prompt_bytes"), [(OTHER_TAG, PROMPT_BYTES), (TAG, PROMPT_BYTES - 1)])
def test_a_handoff_is_for_its_own_prompt(tag: bytes, prompt_bytes: int) -> None:
    book = LeaseBook()
    book.read(granted(book, TANDEM_ASK), tag, prompt_bytes)
    assert (book.faults.other_prompt, book.faults.total()) == (1, 1)


def test_a_prefill_that_is_not_asked_for_a_handoff_grants_none() -> None:
    book = LeaseBook()
    assert book.grant(None, TAG, PROMPT_BYTES) is None
    assert book.grant({"do_remote_decode": False}, TAG, PROMPT_BYTES) is None
    assert book.num_live == 0


def test_a_release_ends_a_lease_once() -> None:
    book = LeaseBook()
    granted(book, TANDEM_ASK)
    assert book.release("a" * 32)
    assert not book.release("a" * 32)
    assert book.counts()["released"] == 1
    assert book.counts()["live"] == 0


def test_a_reset_forgets_counts_and_leases() -> None:
    book = LeaseBook()
    granted(book, TANDEM_ASK)
    book.read(None, TAG, PROMPT_BYTES)
    book.reset()
    assert set(book.counts().values()) == {0}


@pytest.mark.parametrize(
    ("body", "params"),
    [
        (b'{"kv_transfer_params":{"a":[1,{"b":2}]},"x":"}"}', {"a": [1, {"b": 2}]}),
        (b'{"x": 1, "kv_transfer_params" : { "a" : null } }', {"a": None}),
        (b'{"kv_transfer_params":null}', None),
        (b'{"kv_transfer_params":{"a":', None),
        (b'{"x":1}', None),
    ],
)
def test_the_params_are_found_however_they_are_spelled(body: bytes, params: dict[str, Any] | None) -> None:
    assert find_params(body) == params
