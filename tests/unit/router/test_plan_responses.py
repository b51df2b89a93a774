"""Of a request to the Responses API the router refuses what needs a memory, and checks what prefill doesn't see."""

from collections.abc import Mapping
from typing import Any

import pytest

from router.context import Plan
from router.endpoints import Endpoint, Route
from router.json_members import Member
from router.plan_responses import plan_responses
from tests.unit.router.test_validate import each
from wire.errors import BadRequest

BASE: dict[str, Any] = {"model": "nano", "input": "hi"}


def planned(fields: Mapping[str, Any]) -> Plan:
    members = [Member(key, value, 0, 0, 0) for key, value in (BASE | dict(fields)).items()]
    return plan_responses(Endpoint.RESPONSES, members)


WRONG: list[tuple[str, Any]] = [
    *each("model", 1, ""),
    *each("input", None, 1, {}, []),
    *each("stream", 1, "true"),
    *each("max_output_tokens", 0, -1, 1.5, "5", True),
    *each("include", "message.output_text.logprobs", [1], {}),
    *each("top_logprobs", -2, "1", True),
    *each("text", "x", []),
    *each("tools", {}, "f", 1, ["f"], [1]),
    *each("stop", "", [""], [1]),
    *each("temperature", -1, 2.1, "1"),
    *each("store", 1, "no"),
    *each("background", 1, "yes", True),
    *each("previous_response_id", "resp_1", "", 1),
    *each("conversation", "conv_1", {"id": "conv_1"}),
    *each("kv_transfer_params", None, {}),
    *each("structured_outputs", "x"),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_is_refused_by_the_fields_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        planned({field: value})
    assert caught.value.param == field


def test_the_input_is_required() -> None:
    with pytest.raises(BadRequest) as caught:
        plan_responses(Endpoint.RESPONSES, [])
    assert caught.value.param == "input"


@pytest.mark.parametrize(
    "item",
    [
        "hi",
        {"type": "item_reference", "id": "msg_1"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y.png"}]},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file", "file_id": "f"}]},
    ],
)
def test_an_item_that_workers_cannot_serve_is_refused_by_its_place(item: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        planned({"input": [{"role": "user", "content": "hi"}, item]})
    assert caught.value.param == "input[1]"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": None},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
        {"stream": True, "max_output_tokens": 1, "include": ["message.output_text.logprobs"], "top_logprobs": 3},
        {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"maxItems": 5}}}},
        {"background": False, "previous_response_id": None, "conversation": None, "store": True},
        {"tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}, {"type": "namespace"}]},
        {"truncation": "auto", "max_output_tokens": 5},
        {"truncation": "disabled"},
        {"some_new_field": 1},
    ],
)
def test_what_vllm_takes_passes_and_takes_both_legs(fields: dict[str, Any]) -> None:
    plan = planned(fields)
    assert (plan.route, plan.num_choices) == (Route.PREFILL_DECODE, 1)
    assert (plan.is_stream, plan.max_tokens) == (bool(fields.get("stream")), fields.get("max_output_tokens"))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"truncation": "auto"}, "unbounded_truncation"),
        ({"truncation": None}, "unbounded_truncation"),
        ({"tools": [{"type": "function", "name": "f"}, {"type": "mcp", "server_label": "s"}]}, "server_tools"),
        ({"tools": [{"type": "web_search_preview"}]}, "server_tools"),
    ],
)
def test_what_a_handoff_cannot_serve_goes_to_decode_alone(fields: dict[str, Any], reason: str) -> None:
    plan = planned(fields)
    assert (plan.route, plan.reason) == (Route.DECODE_ONLY, reason)


def test_a_schema_that_would_fill_a_workers_memory_is_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        planned({"text": {"format": {"type": "json_schema", "schema": {"minItems": 10**9}}}})
    assert caught.value.param == "text"
