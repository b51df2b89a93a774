"""The FastAPI application: puts the parts together and holds the small routes."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route as AsgiRoute
from starlette.types import Receive, Scope, Send

from router.auth import ClientAuth, ClusterAuth
from router.config import RouterConfig
from router.context import Endpoint
from router.control import control_router
from router.generate import ActiveRequests, GenerateEndpoint
from router.health import HealthProber
from router.http1_client import Http1WorkerClient
from router.legs import Legs, worker_headers
from router.metrics import METRICS_CONTENT_TYPE, RouterMetrics
from router.openapi import ERROR_SCHEMA, generate_operation
from router.pipeline import Pipeline
from router.registry import WorkerRegistry
from router.release import Releaser
from router.select import POLICIES, Selector
from router.worker_client import WorkerClient
from wire.errors import BadRequest, ServingError
from wire.worker import WorkerRole


@dataclass(frozen=True, slots=True)
class RouterParts:
    """What one router process is made of; tests reach in here."""

    config: RouterConfig
    registry: WorkerRegistry
    client: WorkerClient
    metrics: RouterMetrics
    releaser: Releaser
    pipeline: Pipeline
    prober: HealthProber
    active: ActiveRequests
    clock: Callable[[], float]


def _hex_ids() -> Callable[[], str]:
    """Numbers of 32 hexadecimal digits that no other process or start gives out, and that cost no system call each."""
    start, numbers = os.urandom(8).hex(), count()
    return lambda: f"{start}{next(numbers):016x}"


def build_parts(
    config: RouterConfig,
    *,
    client: WorkerClient | None = None,
    clock: Callable[[], float] = time.monotonic,
    new_handoff_id: Callable[[], str] | None = None,
) -> RouterParts:
    """Wire the parts of a router; nothing runs yet."""
    client = client or Http1WorkerClient(connect_timeout_s=config.connect_timeout_s)
    registry = WorkerRegistry(ttl_s=config.heartbeat_ttl_s, clock=clock)
    active = ActiveRequests()
    metrics = RouterMetrics(registry.workers, lambda: active.num)
    headers = worker_headers(config.cluster_token)
    releaser = Releaser(client=client, metrics=metrics, headers=headers, timeout_s=config.release_timeout_s)
    pipeline = Pipeline(
        registry=registry,
        selectors={role: Selector(POLICIES[config.policy]()) for role in WorkerRole},
        legs=Legs(client=client, config=config),
        releaser=releaser,
        metrics=metrics,
        clock=clock,
        new_handoff_id=new_handoff_id or _hex_ids(),
    )
    prober = HealthProber(
        registry=registry,
        client=client,
        headers=headers,
        interval_s=config.health_interval_s,
        timeout_s=max(config.health_interval_s, config.connect_timeout_s),
    )
    return RouterParts(config, registry, client, metrics, releaser, pipeline, prober, active, clock)


class RouterApp(FastAPI):
    """The application; requests to the generating endpoints skip its middlewares and its search for a route.

    They need neither: their handlers answer every error themselves. All else, also wrong methods, goes the usual way.
    """

    generating: dict[str, GenerateEndpoint]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self.generating.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (super().__call__ if handler is None else handler)(scope, receive, send)


def create_app(parts: RouterParts) -> FastAPI:
    """The application around the parts; its lifespan probes static workers and, at the end, waits for releases."""
    app = RouterApp(
        title="tandem router", version="0.1.0", lifespan=_lifespan(parts), redoc_url=None, redirect_slashes=False
    )
    _add_error_handlers(app)
    _add_generating_routes(app, parts)
    _add_small_routes(app, parts)
    cluster_auth = ClusterAuth(parts.config.cluster_token, is_loopback=parts.config.is_loopback)
    app.include_router(control_router(registry=parts.registry, auth=cluster_auth))
    return app


def _lifespan(parts: RouterParts) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        static = [parts.registry.add_static(WorkerRole.PREFILL, url) for url in parts.config.prefill]
        static += [parts.registry.add_static(WorkerRole.DECODE, url) for url in parts.config.decode]
        probing = asyncio.create_task(parts.prober.run(static))
        try:
            yield
        finally:
            probing.cancel()
            with suppress(asyncio.CancelledError):
                await probing
            # Requests that the server cut off at its deadline start their releases as they unwind: let them.
            with suppress(TimeoutError):
                await parts.active.wait_idle(parts.config.release_timeout_s)
            await parts.releaser.aclose(parts.config.release_timeout_s)
            await parts.client.aclose()

    return lifespan


def _add_generating_routes(app: RouterApp, parts: RouterParts) -> None:
    auth = ClientAuth(parts.config.api_keys)
    app.generating, new_request_id = {}, _hex_ids()
    for endpoint in Endpoint:
        handler = GenerateEndpoint(
            endpoint,
            pipeline=parts.pipeline,
            auth=auth,
            metrics=parts.metrics,
            active=parts.active,
            max_body_bytes=parts.config.max_body_bytes,
            clock=parts.clock,
            new_request_id=new_request_id,
        )
        app.generating[endpoint.url_path] = handler
        app.router.routes.append(AsgiRoute(endpoint.url_path, handler, methods=["POST"]))

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schema.setdefault("components", {}).setdefault("schemas", {})["Error"] = ERROR_SCHEMA
            for endpoint in Endpoint:
                schema["paths"][endpoint.url_path] = {"post": generate_operation(endpoint)}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_small_routes(app: FastAPI, parts: RouterParts) -> None:
    registry, auth, created = parts.registry, ClientAuth(parts.config.api_keys), int(time.time())

    @app.get("/health", tags=["state"])
    async def health() -> Response:
        """The process is alive."""
        return Response(status_code=200)

    @app.get("/ready", tags=["state"])
    async def ready() -> JSONResponse:
        """200 when a READY prefill and a READY decode worker serve the same model; 503 says what is missing."""
        missing = [role.value for role in registry.pools().missing_roles()]
        return JSONResponse({"ready": not missing, "missing": missing}, status_code=503 if missing else 200)

    @app.get("/metrics", tags=["state"])
    async def metrics() -> Response:
        """Prometheus exposition text."""
        return Response(parts.metrics.render(), media_type=METRICS_CONTENT_TYPE)

    @app.get("/v1/models", tags=["generate"])
    async def models(request: Request) -> dict[str, Any]:
        """The models that READY workers serve."""
        auth.check(request.headers)
        cards = [
            {
                "id": model,
                "object": "model",
                "created": created,
                "owned_by": "tandem",
                "max_model_len": worker.max_model_len,
            }
            for model, worker in registry.pools().models.items()
        ]
        return {"object": "list", "data": cards}


def _add_error_handlers(app: FastAPI) -> None:
    async def on_serving_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ServingError)
        return JSONResponse(error.openai_body(), status_code=error.status)

    async def on_validation_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"] if part != "body")
        refusal = BadRequest(f"{where or 'body'}: {fault['msg']}", param=where or None)
        return JSONResponse(refusal.openai_body(), status_code=refusal.status)

    async def on_http_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
        body = {"message": str(error.detail), "type": kind, "param": None, "code": error.status_code}
        return JSONResponse({"error": body}, status_code=error.status_code, headers=error.headers)

    async def on_fault(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(ServingError("Internal error.").openai_body(), status_code=500)

    app.add_exception_handler(ServingError, on_serving_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_fault)
