"""Runs one worker: vLLM's engine and OpenAI server with our routes, registration, and a drain on SIGTERM."""

import argparse
import asyncio
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from types import ModuleType

import httpx
import uvloop
from fastapi import FastAPI
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.launcher import serve_http, setup_server
from vllm.utils.argparse_utils import FlexibleArgumentParser

from vllm_engine.args import vllm_args
from vllm_engine.auth import ClusterAuth
from vllm_engine.heartbeat import Heartbeat
from vllm_engine.routes import worker_routes
from vllm_engine.state import WorkerProcess
from wire.worker import WorkerState
from wire.worker_config import CLUSTER_TOKEN_ENV, WorkerConfig

logger = logging.getLogger("vllm.tandem.worker")

_DRAIN_POLL_S = 0.1  # how soon an idle worker leaves


def run(config: WorkerConfig, role_args: Sequence[str]) -> None:
    """Serve until SIGTERM or SIGINT; returns after the drain."""
    generation = uuid.uuid4().hex[:12]
    cli = _cli_args_module()
    parser = cli.make_arg_parser(FlexibleArgumentParser(description="tandem worker"))
    args = parser.parse_args(vllm_args(config, f"{config.worker_id}-{generation}", role_args))
    cli.validate_parsed_serve_args(args)
    uvloop.run(_serve(config, generation, args))


def _cli_args_module() -> ModuleType:
    """vLLM's server arguments; 0.33 moved the file."""
    try:
        return import_module("vllm.entrypoints.common.cli_args")
    except ModuleNotFoundError:
        return import_module("vllm.entrypoints.launchers.cli_args")


async def _serve(config: WorkerConfig, generation: str, args: argparse.Namespace) -> None:
    token = os.environ.get(CLUSTER_TOKEN_ENV, "")
    # Bound before the model is loaded, so that a taken port fails at once.
    _, sock = setup_server(args, reuse_port=False)
    with sock:
        async with build_async_engine_client(args) as engine:
            process = WorkerProcess(config, generation, token, engine)
            process.row_bytes = (await process.connector_status())["row_bytes"]
            await _serve_http(process, await _build_app(process, args), args, sock)


async def _build_app(process: WorkerProcess, args: argparse.Namespace) -> FastAPI:
    tasks = await process.engine.get_supported_tasks()
    app: FastAPI = build_app(args, tasks, process.engine.model_config)
    await init_app_state(process.engine, app.state, args, tasks)
    vllm_routes = list(app.router.routes)
    app.router.routes.clear()
    app.include_router(worker_routes(process))  # first, since vLLM has a /health of its own
    app.router.routes.extend(vllm_routes)
    if process.token:
        # vLLM has built its middleware already; ours goes around it, so that a stranger reaches nothing of it.
        app.middleware_stack = ClusterAuth(app.middleware_stack or app.build_middleware_stack(), process.token)
    return app


async def _serve_http(process: WorkerProcess, app: FastAPI, args: argparse.Namespace, sock: socket.socket) -> None:
    """Answer requests until a signal or the engine's death.

    Raises:
        RuntimeError: the server ended by itself, which it does only when the engine has died.
    """
    http = asyncio.create_task(
        serve_http(
            app,
            sock=sock,
            enable_ssl_refresh=False,
            host=args.host,
            port=args.port,
            log_level=args.uvicorn_log_level,
            access_log=False,
            timeout_graceful_shutdown=max(1, round(process.config.drain_timeout_s)),
        )
    )
    while not (http.done() or _is_started(app)):  # noqa: ASYNC110 - uvicorn has a flag, no event
        await asyncio.sleep(0.05)
    stop = asyncio.Event()
    # Replaces vLLM's handlers, which stop the engine before its streams have ended.
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, _on_signal, app, stop)
    process.state = WorkerState.READY
    logger.info("%s worker %s serves at %s", process.config.role, process.config.worker_id, process.config.url)
    async with _registered(process):
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((http, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            stopping.cancel()
            await (await http)
            raise RuntimeError("the engine died")
        await _drain(process)
    app.state.server.should_exit = True
    await (await http)  # vLLM hands back what is left to wait for


def _is_started(app: FastAPI) -> bool:
    return bool(getattr(getattr(app.state, "server", None), "started", False))


def _on_signal(app: FastAPI, stop: asyncio.Event) -> None:
    if stop.is_set():  # asked twice: do not wait for streams
        app.state.server.force_exit = True
        app.state.server.should_exit = True
    stop.set()


@asynccontextmanager
async def _registered(process: WorkerProcess) -> AsyncIterator[None]:
    """Heartbeats while inside; the router hears of the end."""
    if process.config.router_url is None:
        yield
        return
    async with httpx.AsyncClient(timeout=5.0) as client:
        heartbeat = Heartbeat(process, client)
        beats = asyncio.create_task(heartbeat.run())
        try:
            yield
        finally:
            beats.cancel()
            with suppress(asyncio.CancelledError):
                await beats
            await heartbeat.leave()


async def _drain(process: WorkerProcess) -> None:
    """Take nothing new, and wait until nothing runs and no lease is out, for at most the drain time."""
    process.state = WorkerState.DRAINING
    deadline = time.monotonic() + process.config.drain_timeout_s
    while time.monotonic() < deadline:
        status = await process.status()
        if status.num_requests_running + status.num_requests_waiting + status.num_leases == 0:
            return
        await asyncio.sleep(_DRAIN_POLL_S)
    logger.warning("drain time of %g s is over; what still runs is cut", process.config.drain_timeout_s)
