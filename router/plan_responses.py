"""Checks and plans a request to the Responses API. Meanings are vLLM's; no message quotes a value.

Workers keep nothing of a conversation, and of a pair only decode would have it: what refers to an earlier response is
refused, and so is what would have to be fetched later.
"""

from collections.abc import Iterable
from typing import Any

from router.context import Plan
from router.endpoints import Endpoint, Route
from router.field_checks import check_fields
from router.json_members import Member
from router.media import check_text_only
from router.schema_bounds import check_schema_bounds
from wire.errors import BadRequest

_STATEFUL = {
    "previous_response_id": "This service stores no responses: send the conversation so far in `input`.",
    "conversation": "This service stores no conversations: send the conversation so far in `input`.",
    "background": "This service stores no responses: wait for the answer, or stream it.",
}
# Tools that the client runs. All others a worker with a tool server runs itself, and then asks its engine again with
# the same parameters: a handoff would be read twice.
_CLIENT_TOOLS = frozenset({"function", "custom", "namespace"})


def plan_responses(endpoint: Endpoint, members: Iterable[Member]) -> Plan:
    """Raises: BadRequest: ``param`` names the field."""
    fields = check_fields(endpoint, members)
    for name, advice in _STATEFUL.items():
        if fields.get(name) not in (None, False):
            raise BadRequest(f"`{name}` is not supported. {advice}", param=name)
    check_schema_bounds(fields)
    _check_input(fields.get("input"))
    max_tokens = fields.get("max_output_tokens")
    route, reason = _choose_route(fields, max_tokens)
    return Plan(
        model=fields.get("model"),
        is_stream=bool(fields.get("stream")),
        num_choices=1,
        max_tokens=max_tokens,
        route=route,
        reason=reason,
        priority=fields.get("priority", 0),
    )


def _choose_route(fields: dict[str, Any], max_tokens: int | None) -> tuple[Route, str]:
    if any(tool.get("type") not in _CLIENT_TOOLS for tool in fields.get("tools") or ()):
        return Route.DECODE_ONLY, "server_tools"
    if max_tokens is None and fields.get("truncation", "disabled") != "disabled":
        # vLLM then keeps one prompt token more than with a limit, so the two legs would disagree on the prompt.
        return Route.DECODE_ONLY, "unbounded_truncation"
    return Route.PREFILL_DECODE, "handoff"


def _check_input(value: Any) -> None:
    if isinstance(value, str):
        return
    if not isinstance(value, list) or not value:
        raise BadRequest("`input` must be a string or a non-empty list.", param="input")
    for index, item in enumerate(value):
        field = f"input[{index}]"
        if not isinstance(item, dict):
            raise BadRequest(f"`{field}` must be an object.", param=field)
        if item.get("type") == "item_reference":
            raise BadRequest(f"`{field}` refers to an item, but this service stores none: send it whole.", param=field)
        for parts in (item.get("content"), item.get("output")):
            if isinstance(parts, list):
                check_text_only(parts, field)
