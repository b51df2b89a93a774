"""Which models are served: refuses requests for others, and lists them for clients."""

from collections.abc import Mapping
from typing import Any

from router.context import Endpoint, Plan
from router.workers import Worker
from wire.errors import BadRequest, NotFound


def check_model(served: Mapping[str, Worker], endpoint: Endpoint, plan: Plan) -> None:
    """Whether a usable worker serves the model and has room for the answer; with no worker at all, that is said later.

    Raises: NotFound, BadRequest.
    """
    if not served:
        return
    if plan.model is not None and plan.model not in served:
        raise unknown_model(plan.model)
    if plan.max_tokens is None:
        return
    candidates = served.values() if plan.model is None else [served[plan.model]]
    limits = [worker.max_model_len for worker in candidates]
    if all(limit is not None and plan.max_tokens > limit for limit in limits):
        # Decode would refuse it too, but only after the prompt was computed.
        field = "max_tokens" if endpoint.prefill is None else endpoint.prefill.limit_field
        raise BadRequest(
            f"{field}={plan.max_tokens} is more than the model's context of {limits[0]} tokens.", param=field
        )


def unknown_model(name: str) -> NotFound:
    return NotFound(f"The model `{name[:128]}` does not exist.", param="model", code="model_not_found")


def model_card(name: str, worker: Worker, created: int) -> dict[str, Any]:
    """A model as ``/v1/models`` lists it; ``created`` in seconds of Unix time."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "tandem",
        "max_model_len": worker.max_model_len,
    }
