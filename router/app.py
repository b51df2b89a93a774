"""The FastAPI application: puts the parts together and holds the small routes."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.routing import Route as AsgiRoute
from starlette.types import Receive, Scope, Send

from router.auth import ClientAuth, ClusterAuth, configured_keys
from router.client_routes import client_routes
from router.config import RouterConfig
from router.control import control_router
from router.control_view import ControlView
from router.endpoints import Endpoint
from router.error_answers import add_error_handlers
from router.generate import ActiveRequests, GenerateEndpoint
from router.health import HealthProber
from router.http1_client import Http1WorkerClient
from router.key_usage import KeyUsage
from router.legs import Legs, worker_headers
from router.lifecycle import Lifecycle, build_lifecycle
from router.metrics import METRICS_CONTENT_TYPE, RouterMetrics
from router.openapi import complete_page
from router.pass_through import PassThrough
from router.pipeline import Pipeline
from router.registry import WorkerRegistry
from router.release import Releaser
from router.select import make_selector, make_selectors
from router.tls import worker_context
from router.trace_context import Tracer, make_tracer
from router.worker_client import WorkerClient
from router.workers import Worker
from wire.worker import WorkerRole

VERSION = "0.1.0"


@dataclass(frozen=True, slots=True)
class RouterParts:
    """What one router process is made of; tests reach in here."""

    config: RouterConfig
    registry: WorkerRegistry
    client: WorkerClient
    metrics: RouterMetrics
    releaser: Releaser
    pipeline: Pipeline
    pass_through: PassThrough
    prober: HealthProber
    active: ActiveRequests
    clock: Callable[[], float]
    auth: ClientAuth
    usage: KeyUsage
    lifecycle: Lifecycle
    tracer: Tracer | None


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
    random: Random | None = None,
    registry: WorkerRegistry | None = None,
    shown_workers: Callable[[], Sequence[Worker]] | None = None,
) -> RouterParts:
    """Wire the parts of a router; nothing runs yet.

    Args:
        shown_workers: those that the metrics show; None: all of the registry.

    Raises:
        ConfigError: a file or a library that the configuration names can't be used.
    """
    client = client or Http1WorkerClient(connect_timeout_s=config.connect_timeout_s, ssl_context=worker_context(config))
    registry = registry or WorkerRegistry(ttl_s=config.heartbeat_ttl_s, clock=clock)
    active, usage = ActiveRequests(), KeyUsage(config.max_in_flight_per_key)
    metrics = RouterMetrics(shown_workers or registry.workers, lambda: active.num, usage)
    headers = worker_headers(config.cluster_token)
    releaser = Releaser(client=client, metrics=metrics, headers=headers, timeout_s=config.release_timeout_s)
    legs, random = Legs(client=client, config=config), random or Random()
    lifecycle = build_lifecycle(
        config,
        registry=registry,
        metrics=metrics.lifecycle,
        num_active=lambda: active.num,
        clock=clock,
        random=random,
    )
    pipeline = Pipeline(
        registry=registry,
        selectors=make_selectors(config, random),
        legs=legs,
        releaser=releaser,
        metrics=metrics,
        lifecycle=lifecycle,
        clock=clock,
        new_handoff_id=new_handoff_id or _hex_ids(),
    )
    pass_through = PassThrough(
        registry=registry,
        selector=make_selector(config.policy, random),
        legs=legs,
        metrics=metrics,
        lifecycle=lifecycle,
        clock=clock,
    )
    prober = HealthProber(
        registry=registry,
        client=client,
        headers=headers,
        interval_s=config.health_interval_s,
        timeout_s=max(config.health_interval_s, config.connect_timeout_s),
    )
    return RouterParts(
        config=config,
        registry=registry,
        client=client,
        metrics=metrics,
        releaser=releaser,
        pipeline=pipeline,
        pass_through=pass_through,
        prober=prober,
        active=active,
        clock=clock,
        auth=ClientAuth(configured_keys(config), usage),
        usage=usage,
        lifecycle=lifecycle,
        tracer=make_tracer(config),
    )


class RouterApp(FastAPI):
    """The application; requests that workers answer skip its middlewares and its search for a route.

    They need neither: their handlers answer every error themselves. All else, also wrong methods, goes the usual way.
    """

    generating: dict[str, GenerateEndpoint]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self.generating.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (super().__call__ if handler is None else handler)(scope, receive, send)


def create_app(parts: RouterParts) -> FastAPI:
    """The application around the parts; its lifespan probes static workers and, at the end, waits for releases.

    Without a ``metrics_port`` it has the control application's routes too.
    """
    app = RouterApp(
        title="tandem router", version=VERSION, lifespan=_lifespan(parts), redoc_url=None, redirect_slashes=False
    )
    add_error_handlers(app)
    _add_generating_routes(app, parts)
    view = ControlView(parts.metrics.render)
    _add_state_routes(app, parts, view)
    app.include_router(client_routes(registry=parts.registry, auth=parts.auth))
    if parts.config.metrics_port is None:
        _add_control_routes(app, parts, view)
    _set_page(app, Endpoint)
    return app


def create_control_app(parts: RouterParts, view: ControlView | None = None) -> FastAPI:
    """Metrics, state and the routes that workers call, for a port of their own. Nothing that a client calls is here.

    Args:
        view: of a process that serves nothing else, and so has this application's lifespan; None: it serves the other
            application too, whose lifespan rules.
    """
    app = FastAPI(
        title="tandem router: control",
        version=VERSION,
        lifespan=None if view is None else _lifespan(parts),
        redoc_url=None,
        redirect_slashes=False,
    )
    view = view or ControlView(parts.metrics.render)
    add_error_handlers(app)
    _add_state_routes(app, parts, view)
    _add_control_routes(app, parts, view)
    _set_page(app, ())
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
            if parts.tracer is not None:
                await parts.tracer.aclose()

    return lifespan


def _add_generating_routes(app: RouterApp, parts: RouterParts) -> None:
    app.generating, new_request_id = {}, _hex_ids()
    for endpoint in Endpoint:
        handler = GenerateEndpoint(
            endpoint,
            pipeline=parts.pass_through if endpoint.prefill is None else parts.pipeline,
            auth=parts.auth,
            usage=parts.usage,
            metrics=parts.metrics,
            active=parts.active,
            lifecycle=parts.lifecycle,
            max_body_bytes=parts.config.max_body_bytes,
            clock=parts.clock,
            new_request_id=new_request_id,
            tracer=parts.tracer,
        )
        app.generating[endpoint.url_path] = handler
        app.router.routes.append(AsgiRoute(endpoint.url_path, handler, methods=["POST"]))


def _set_page(app: FastAPI, endpoints: Iterable[Endpoint]) -> None:
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = complete_page(schema, endpoints)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_state_routes(app: FastAPI, parts: RouterParts, view: ControlView) -> None:
    @app.get("/health", tags=["state"])
    async def health() -> Response:
        """The process is alive."""
        return Response(status_code=200)

    @app.get("/ready", tags=["state"])
    async def ready() -> JSONResponse:
        """200 when a READY prefill and a READY decode worker serve the same model; 503 says what is missing.

        Where decode may do without prefill, a READY decode worker is enough once there has been such a pair. A router
        that was asked to stop is not ready, whatever workers it has.
        """
        missing = parts.registry.pools().missing_roles()
        can_serve = view.is_serving() and parts.lifecycle.fallback.can_serve(missing)
        is_ready = can_serve and not parts.lifecycle.drain.is_on
        return JSONResponse({"ready": is_ready, "missing": missing}, status_code=200 if is_ready else 503)


def _add_control_routes(app: FastAPI, parts: RouterParts, view: ControlView) -> None:
    @app.get("/metrics", tags=["state"])
    async def metrics() -> Response:
        """Prometheus exposition text."""
        await view.gather()
        return Response(view.render(), media_type=METRICS_CONTENT_TYPE)

    cluster_auth = ClusterAuth(parts.config.cluster_token, is_loopback=parts.config.is_loopback)
    app.include_router(control_router(registry=parts.registry, auth=cluster_auth, gather=view.gather))
