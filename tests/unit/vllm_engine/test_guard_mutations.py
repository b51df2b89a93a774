"""A valid signed handoff with any one of its fields changed never reaches the engine."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.vllm_engine.factories import params
from tests.unit.vllm_engine.guarded import Guarded
from wire.handoff import KVHandoff
from wire.refusal import HTTP_STATUS, Refusal

VALID = params()
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def like(value: Any) -> "st.SearchStrategy[Any]":
    """Values of the same type, many of which are valid in themselves."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.integers(0, 1 << 20)
    if isinstance(value, float):
        return st.floats(0.1, 3600)
    if isinstance(value, list):
        return st.lists(st.integers(0, 50), min_size=1, max_size=6) | st.permutations(value)
    return st.text("0123456789abcdef", min_size=len(value), max_size=len(value))


FIELDS = st.sampled_from([name for name in KVHandoff.model_fields if name in VALID])
CHANGES = FIELDS.flatmap(lambda name: st.tuples(st.just(name), like(VALID[name]) | JSON_VALUES))


def means_the_same(name: str, value: object) -> bool:
    """Whether the change is none for whoever reads it."""
    if name == "remote_prefill_cached_tokens":
        # Not signed: vLLM adds it behind us. Within its bounds any value is a good one.
        return value is None or (type(value) is int and 0 <= value <= VALID["remote_num_tokens"])
    if name == "lease_s" and type(value) is int:
        return bool(value == VALID[name])
    return json.dumps(value) == json.dumps(VALID[name])


@settings(max_examples=400)
@given(CHANGES)
async def test_a_handoff_with_one_field_changed_is_refused(change: tuple[str, Any]) -> None:
    name, value = change
    worker = Guarded()
    reply = await worker.post(VALID | {name: value})
    if means_the_same(name, value):
        assert reply.status == 200
        return
    assert reply.refusal in {reason.value for reason in HTTP_STATUS} - {Refusal.REPLAYED.value}
    assert 400 <= reply.status < 500
    assert worker.inner.bodies == []


@given(st.sampled_from(sorted(set(VALID) - {"remote_prefill_cached_tokens", "do_remote_prefill", "do_remote_decode"})))
async def test_a_handoff_without_one_of_its_fields_is_refused(name: str) -> None:
    worker = Guarded()
    reply = await worker.post({field: value for field, value in VALID.items() if field != name})
    assert reply.refusal == Refusal.MALFORMED.value
    assert worker.inner.bodies == []


@given(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=4) | JSON_VALUES.filter(lambda v: v is not None))
async def test_anything_else_in_its_place_is_refused(instead: Any) -> None:
    worker = Guarded()
    reply = await worker.post(instead)
    assert reply.refusal == Refusal.MALFORMED.value
    assert worker.inner.bodies == []


@given(st.integers(301, 1 << 40) | st.integers(-(1 << 40), -1))
async def test_more_prefix_hits_than_the_prompt_has_tokens_are_refused(num_hits: int) -> None:
    worker = Guarded()
    assert (await worker.post(VALID | {"remote_prefill_cached_tokens": num_hits})).refusal == Refusal.MALFORMED.value
