"""From a client's bytes to a checked body and a plan: which checks each endpoint has."""

from collections.abc import Callable, Iterable

from router.body import ClientBody
from router.context import Plan
from router.endpoints import Endpoint, Route
from router.field_checks import check_fields
from router.json_members import Member
from router.plan_messages import plan_messages
from router.plan_responses import plan_responses
from router.validate import plan_request

Planner = Callable[[Endpoint, Iterable[Member]], Plan]


def plan_pass_through(endpoint: Endpoint, members: Iterable[Member]) -> Plan:
    """All but the model's name is the worker's to check. Raises: BadRequest: ``param`` names the field."""
    fields = check_fields(endpoint, members)
    return Plan(
        model=fields.get("model"),
        is_stream=False,
        num_choices=1,
        max_tokens=None,
        route=Route.ONE_WORKER,
        reason="pass_through",
    )


PLANNERS: dict[Endpoint, Planner] = {
    Endpoint.CHAT: plan_request,
    Endpoint.COMPLETIONS: plan_request,
    Endpoint.RESPONSES: plan_responses,
    Endpoint.MESSAGES: plan_messages,
    Endpoint.COUNT_TOKENS: plan_pass_through,
    Endpoint.EMBEDDINGS: plan_pass_through,
    Endpoint.TOKENIZE: plan_pass_through,
    Endpoint.DETOKENIZE: plan_pass_through,
}


def read_body(endpoint: Endpoint, raw: bytes) -> tuple[ClientBody, Plan]:
    """Raises: BadRequest: ``param`` names the field, where it is one."""
    body = ClientBody.parse(raw)
    return body, PLANNERS[endpoint](endpoint, body.members.values())
