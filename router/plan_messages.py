"""Checks and plans a request to Anthropic's Messages API. Meanings are vLLM's; no message quotes a value."""

from collections.abc import Iterable
from typing import Any

from router.context import Plan
from router.endpoints import Endpoint, Route
from router.field_checks import check_fields, is_int
from router.json_members import Member
from router.media import check_text_only
from router.schema_bounds import check_schema_bounds
from wire.errors import BadRequest

_REQUIRED = ("model", "max_tokens", "messages")
# vLLM drops them unseen, and the answer would be another than the one that was asked for.
_SERVER_SIDE = ("container", "mcp_servers")
_RESULT_PARTS = ("text", "tool_reference")


def plan_messages(endpoint: Endpoint, members: Iterable[Member]) -> Plan:
    """Raises: BadRequest: ``param`` names the field."""
    fields = check_fields(endpoint, members)
    for name in _REQUIRED:
        if name not in fields:
            raise BadRequest(f"`{name}` is required.", param=name)
    for name in _SERVER_SIDE:
        if fields.get(name):
            raise BadRequest(f"`{name}` is not supported: nothing runs on the server for a conversation.", param=name)
    check_schema_bounds(fields)
    _check_messages(fields["messages"])
    _check_thinking(fields)
    return Plan(
        model=fields["model"],
        is_stream=bool(fields.get("stream")),
        num_choices=1,
        max_tokens=fields["max_tokens"],
        route=Route.PREFILL_DECODE,
        reason="handoff",
    )


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` must be a non-empty list.", param="messages")
    for index, message in enumerate(messages):
        field = f"messages[{index}]"
        if not isinstance(message, dict):
            raise BadRequest(f"`{field}` must be an object.", param=field)
        content = message.get("content")
        if isinstance(content, list):
            check_text_only(content, field)
            for position, block in enumerate(content):
                _check_block(block, f"{field}.content[{position}]")


def _check_block(block: Any, field: str) -> None:
    if not isinstance(block, dict):
        raise BadRequest(f"`{field}` must be an object.", param=field)
    kind, result = block.get("type"), block.get("content")
    if kind == "tool_result" and isinstance(result, list):
        check_text_only(result, field)
        # vLLM drops all else unseen.
        if not all(isinstance(part, dict) and part.get("type") in _RESULT_PARTS for part in result):
            raise BadRequest(f"`{field}.content` may hold text alone.", param=f"{field}.content")
    if kind == "tool_use" and not (isinstance(block.get("id"), str) and block["id"]):
        # vLLM would make one up from the time of day, and the two legs could disagree on the prompt.
        raise BadRequest(f"`{field}.id` must be a non-empty string.", param=f"{field}.id")


def _check_thinking(fields: dict[str, Any]) -> None:
    thinking = fields.get("thinking") or {}
    budget = thinking.get("budget_tokens")
    # vLLM exempts the prefill leg from this, so it would be found only after the prompt was computed.
    if thinking.get("type") == "enabled" and is_int(budget) and budget >= fields["max_tokens"]:
        raise BadRequest("`thinking.budget_tokens` must be less than `max_tokens`.", param="thinking.budget_tokens")
