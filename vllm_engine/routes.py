"""The routes that we add to vLLM's server."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from vllm.v1.engine.exceptions import EngineDeadError

from kv_transfer import side_channel
from vllm_engine.state import WorkerProcess
from wire.errors import TransferFailed
from wire.handoff import ReleaseReply, ReleaseRequest
from wire.worker import WorkerHeartbeat, WorkerState


def worker_routes(process: WorkerProcess) -> APIRouter:
    """``/health`` (can it serve?), ``/tandem/status``, ``/tandem/release`` and ``/tandem/drain``."""
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> JSONResponse:
        """200 while this engine can take a request, else 503 with the reason."""
        try:
            await process.engine.check_health()
        except EngineDeadError as e:
            return JSONResponse({"state": "unhealthy", "reason": type(e).__name__}, status_code=503)
        if not await process.can_serve():
            return JSONResponse({"state": process.state.value}, status_code=503)
        return JSONResponse({"state": process.state.value})

    @routes.get("/tandem/status")
    async def status() -> WorkerHeartbeat:
        """Who this worker is and how it is."""
        return WorkerHeartbeat(registration=process.registration(), status=await process.status())

    @routes.post("/tandem/release", response_model=None)
    async def release(request: ReleaseRequest) -> ReleaseReply | JSONResponse:
        """Give back the blocks of a handoff that nobody will read; harmless when repeated or too early."""
        try:
            reply = await process.ask_engine(side_channel.RELEASE, request.model_dump_json().encode())
        except TransferFailed as e:
            return JSONResponse(e.openai_body(), status_code=503)
        return ReleaseReply.model_validate_json(reply)

    @routes.post("/tandem/drain")
    async def drain() -> WorkerHeartbeat:
        """Take no new requests from the router; what runs goes on. The process stays until it gets SIGTERM."""
        process.state = WorkerState.DRAINING
        return WorkerHeartbeat(registration=process.registration(), status=await process.status())

    return routes
