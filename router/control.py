"""Control routes: workers register here and say how they are."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from router.auth import ClusterAuth
from router.registry import WorkerRegistry
from router.workers import Worker
from wire.errors import Conflict
from wire.worker import HeartbeatReply, WorkerCheck, WorkerHeartbeat

MISMATCH: dict[int | str, dict[str, Any]] = {409: {"description": "It pairs with no worker of the other role."}}

logger = logging.getLogger(__name__)


def control_router(*, registry: WorkerRegistry, auth: ClusterAuth, gather: Callable[[], Awaitable[None]]) -> APIRouter:
    """Routes under ``/internal``; each needs the cluster token.

    Args:
        gather: awaited before workers are listed, to bring into the registry what other processes have on them.
    """

    async def check_token(request: Request) -> None:
        auth.check(request.headers)

    routes = APIRouter(prefix="/internal", tags=["control"], dependencies=[Depends(check_token)])

    @routes.post("/workers", responses=MISMATCH)
    async def heartbeat(beat: WorkerHeartbeat) -> HeartbeatReply:
        """Register a worker, or tell how it is; a decode worker hears which prefill workers it may read from."""
        before = {worker.worker_id: worker.generation for worker in registry.workers()}
        try:
            worker = registry.heartbeat(beat)
        except Conflict as error:
            logger.warning("registration refused: %s", error.message)
            raise
        if before.get(worker.worker_id) != worker.generation:
            logger.info("worker %s registered as %s at %s", worker.worker_id, worker.role, worker.url)
        return HeartbeatReply(ttl_s=registry.ttl_s, peers=registry.tell_peers(worker))

    @routes.post("/workers/check", status_code=204, responses=MISMATCH)
    async def check(newcomer: WorkerCheck) -> Response:
        """Would this worker be registered? Asked before a model is loaded; nothing is remembered."""
        try:
            registry.check(newcomer)
        except Conflict as error:
            logger.warning("a worker asked and was refused: %s", error.message)
            raise
        return Response(status_code=204)

    @routes.get("/workers")
    async def list_workers() -> dict[str, Any]:
        """Every known worker: registration, status, and what this router has in flight on it."""
        await gather()
        return {"workers": [_describe(worker) for worker in registry.workers()]}

    @routes.delete("/workers/{worker_id}", status_code=204)
    async def remove(worker_id: str) -> Response:
        """Forget a worker that is about to stop."""
        registry.remove(worker_id)
        return Response(status_code=204)

    return routes


def _describe(worker: Worker) -> dict[str, Any]:
    registration = worker.registration
    return {
        "worker_id": worker.worker_id,
        "role": worker.role.value,
        "url": worker.url,
        "model": worker.model,
        "is_static": worker.is_static,
        "is_suspect": worker.is_suspect,
        "breaker": worker.breaker.value,
        "num_in_flight": worker.num_in_flight,
        "registration": None if registration is None else registration.model_dump(mode="json"),
        "status": worker.status.model_dump(mode="json"),
    }
