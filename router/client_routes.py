"""The clients' routes that no worker answers: which models there are, and that no response is stored."""

import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, Request

from router.auth import ClientAuth
from router.registry import WorkerRegistry
from router.served import model_card, unknown_model
from router.workers import Worker
from wire.errors import BadRequest


def client_routes(*, registry: WorkerRegistry, auth: ClientAuth) -> APIRouter:
    """Routes under ``/v1``; each needs a client's key where keys are configured."""

    async def check_key(request: Request) -> None:
        auth.check(request.headers)

    routes = APIRouter(prefix="/v1", dependencies=[Depends(check_key)])
    _add_models(routes, registry)
    _add_stored_responses(routes)
    return routes


def _add_models(routes: APIRouter, registry: WorkerRegistry) -> None:
    created = int(time.time())

    def served() -> Mapping[str, Worker]:
        return registry.pools().models

    @routes.get("/models", tags=["models"])
    async def models() -> dict[str, Any]:
        """The models that READY workers serve; of static workers also their aliases and LoRA adapters."""
        return {"object": "list", "data": [model_card(name, worker, created) for name, worker in served().items()]}

    # Names of models hold slashes.
    @routes.get("/models/{model_id:path}", tags=["models"])
    async def model(model_id: str) -> dict[str, Any]:
        """One of them."""
        worker = served().get(model_id)
        if worker is None:
            raise unknown_model(model_id)
        return model_card(model_id, worker, created)


def _add_stored_responses(routes: APIRouter) -> None:
    @routes.get("/responses/{response_id}", tags=["generate"])
    @routes.delete("/responses/{response_id}", tags=["generate"])
    @routes.get("/responses/{response_id}/input_items", tags=["generate"])
    @routes.post("/responses/{response_id}/cancel", tags=["generate"])
    async def stored_response(response_id: str) -> None:
        """Always a 400: responses are not stored, whatever the request's `store` said."""
        raise BadRequest(
            "`response_id`: this service stores no responses; an answer can't be fetched, cancelled or deleted later.",
            param="response_id",
            code="responses_not_stored",
        )
