"""What would make a grammar compiler unroll without end is refused; what people write is not."""

import json
from typing import Any

import pytest

from router.schema_bounds import MAX_REPETITIONS, check_schema_bounds
from wire.errors import BadRequest

HUGE = 1_000_000_000


def response_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


@pytest.mark.parametrize("key", ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"])
def test_a_huge_repetition_is_refused_wherever_it_lies(key: str) -> None:
    inner = {"type": "object", "properties": {"a": {"anyOf": [{"items": {key: HUGE}}]}}}
    with pytest.raises(BadRequest, match=key) as refusal:
        check_schema_bounds(response_format(inner))
    assert refusal.value.param == "response_format"


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"json": {"minItems": HUGE}}},
        {"structured_outputs": {"json": json.dumps({"items": {"minItems": HUGE}})}},
        {"structured_outputs": {"regex": "a{1000000000}"}},
        {"structured_outputs": {"regex": "a{ 2 , 99999999999999999999 }"}},
        {"structured_outputs": {"grammar": 'root ::= "a"{,1000000}'}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maxLength": 1e12}}}]},
        response_format({"type": "string", "pattern": "^(ab{70000})$"}),
    ],
    ids=lambda fields: json.dumps(fields)[:60],
)
def test_every_way_in_is_bounded(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refusal:
        check_schema_bounds(fields)
    assert refusal.value.param in fields


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None, "tools": []},
        {"response_format": "nonsense", "structured_outputs": 7},
        response_format({"type": "array", "minItems": 1, "maxItems": MAX_REPETITIONS}),
        response_format({"type": "object", "properties": {"minItems": {"type": "integer", "default": HUGE}}}),
        {"structured_outputs": {"regex": r"\d{3}-\d{4}", "json": "no json"}},
        {"structured_outputs": {"choice": ["a{1000000000}"]}},
    ],
    ids=lambda fields: json.dumps(fields)[:60],
)
def test_ordinary_and_mistyped_fields_pass(fields: dict[str, Any]) -> None:
    check_schema_bounds(fields)
