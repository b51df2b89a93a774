"""Which models are served: refuses requests for others, and lists them for clients."""

from collections.abc import Mapping
from typing import Any

from router.context import Plan
from router.endpoints import NO_MODEL, Endpoint
from router.workers import Worker
from wire.errors import BadRequest, NotFound


def check_model(served: Mapping[str, Worker], endpoint: Endpoint, plan: Plan) -> str:
    """The model's name, after a look whether a usable worker serves it and has room for the answer.

    "none" with no worker at all, which is said later. Without a name in the request it is that of one served model.

    Raises: NotFound, BadRequest.
    """
    if not served:
        return NO_MODEL
    name = plan.model
    if name is None:
        name = next(iter(served))
        limits = [worker.max_model_len for worker in served.values()]
    elif name in served:
        limits = [served[name].max_model_len]
    else:
        raise unknown_model(name)
    if plan.max_tokens is not None and all(limit is not None and plan.max_tokens > limit for limit in limits):
        # Decode would refuse it too, but only after the prompt was computed.
        field = "max_tokens" if endpoint.prefill is None else endpoint.prefill.limit_field
        raise BadRequest(
            f"{field}={plan.max_tokens} is more than the model's context of {limits[0]} tokens.", param=field
        )
    return name


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
