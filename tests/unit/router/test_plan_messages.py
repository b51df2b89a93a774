"""Of a request to the Messages API the router checks what prefill doesn't see, and what vLLM would lose unseen."""

from collections.abc import Mapping
from typing import Any

import pytest

from router.context import Plan
from router.endpoints import Endpoint, Route
from router.json_members import Member
from router.plan_messages import plan_messages
from tests.unit.router.test_validate import each
from wire.errors import BadRequest

BASE: dict[str, Any] = {"model": "nano", "max_tokens": 2048, "messages": [{"role": "user", "content": "hi"}]}


def planned(fields: Mapping[str, Any]) -> Plan:
    members = [Member(key, value, 0, 0, 0) for key, value in fields.items()]
    return plan_messages(Endpoint.MESSAGES, members)


def refused(fields: Mapping[str, Any]) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        planned(BASE | dict(fields))
    return caught.value


WRONG: list[tuple[str, Any]] = [
    *each("model", None, "", 1),
    *each("max_tokens", None, 0, -1, 1.5, "5", True),
    *each("messages", None, [], "hi", {}),
    *each("stream", 1, "true"),
    *each("stop_sequences", "x", [1], {}),
    *each("temperature", -1, 2.1, "1"),
    *each("top_p", 0, 1.1),
    *each("thinking", "on", []),
    *each("output_config", "x", []),
    *each("container", "container_1", {"id": "c"}),
    *each("mcp_servers", [{"type": "url", "url": "http://x"}]),
    *each("kv_transfer_params", None, {}),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_is_refused_by_the_fields_name(field: str, value: Any) -> None:
    error = refused({field: value})
    assert error.param == field
    assert f"`{field}`" in error.message


@pytest.mark.parametrize("field", ["model", "max_tokens", "messages"])
def test_what_the_api_requires_is_asked_for(field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        planned({key: value for key, value in BASE.items() if key != field})
    assert caught.value.param == field


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
DOCUMENT = {"type": "document", "source": {"type": "text", "data": "x"}}


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([IMAGE], "messages[0]"),
        (["hi"], "messages[0].content[0]"),
        ([{"type": "text", "text": "x"}, {"type": "tool_result", "content": [IMAGE]}], "messages[0].content[1]"),
        ([{"type": "tool_result", "content": [DOCUMENT]}], "messages[0].content[0].content"),
        ([{"type": "tool_use", "name": "f", "input": {}}], "messages[0].content[0].id"),
        ([{"type": "tool_use", "id": "", "name": "f", "input": {}}], "messages[0].content[0].id"),
    ],
)
def test_content_that_workers_cannot_serve_is_refused_by_its_place(content: Any, param: str) -> None:
    assert refused({"messages": [{"role": "user", "content": content}]}).param == param


def test_a_thinking_budget_must_leave_room_for_the_answer() -> None:
    error = refused({"max_tokens": 1024, "thinking": {"type": "enabled", "budget_tokens": 1024}})
    assert error.param == "thinking.budget_tokens"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": True, "stop_sequences": ["x"], "top_k": 5},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
        {"thinking": None, "output_config": None, "stop_sequences": None, "container": None, "mcp_servers": []},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"image": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]},
                {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "x"}]}]},
            ]
        },
        {"some_new_field": 1},
    ],
)
def test_what_vllm_takes_passes_and_takes_both_legs(fields: dict[str, Any]) -> None:
    plan = planned(BASE | fields)
    assert (plan.route, plan.num_choices, plan.max_tokens) == (Route.PREFILL_DECODE, 1, 2048)
    assert plan.is_stream is bool(fields.get("stream"))


def test_a_schema_that_would_fill_a_workers_memory_is_refused() -> None:
    schema = {"type": "array", "minItems": 10**9}
    assert refused({"output_config": {"format": {"type": "json_schema", "schema": schema}}}).param == "output_config"
