"""Runs one worker: vLLM's engine and OpenAI server with our routes, registration, and a drain on SIGTERM."""

import argparse
import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import Any

import httpx
import uvloop
from fastapi import FastAPI
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.launcher import serve_http, setup_server
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from vllm_engine.args import vllm_args
from vllm_engine.auth import App, ClusterAuth
from vllm_engine.connector_check import WrongEngine, check_connector
from vllm_engine.handoff_guard import HandoffGuard
from vllm_engine.heartbeat import Heartbeat
from vllm_engine.identity import RegistrationRefused, WorkerIdentity
from vllm_engine.model_check import check_plan
from vllm_engine.routes import worker_routes
from vllm_engine.state import WorkerProcess
from wire.worker import WorkerRole, WorkerState
from wire.worker_config import WorkerConfig

logger = logging.getLogger("vllm.tandem.worker")

_MAX_REASON_CHARS = 500
_DRAIN_POLL_S = 0.1  # how soon an idle worker leaves


def run(config: WorkerConfig, identity: WorkerIdentity, role_args: Sequence[str]) -> None:
    """Serve until SIGTERM or SIGINT; returns after the drain.

    Raises:
        RegistrationRefused: the router can pair this worker with no other.
        WrongEngine: vLLM refuses its arguments, or they end up without our connector.
        WrongModel: the model can't be served with them.
    """
    cli = _cli_args_module()
    parser = cli.make_arg_parser(FlexibleArgumentParser(description="tandem worker"))
    args = parser.parse_args(vllm_args(config, identity.engine_id, identity.fingerprint, role_args))
    cli.validate_parsed_serve_args(args)
    if config.extra_vllm_args:  # no others can replace ours
        _check_plan(config, identity.engine_id, args)
    uvloop.run(_serve(config, identity, args))


def _check_plan(config: WorkerConfig, engine_id: str, args: argparse.Namespace) -> None:
    """Build vLLM's configuration once more than needed, which takes less than loading a model in vain.

    Raises:
        WrongEngine, WrongModel: see run.
    """
    check_connector(config, engine_id, args.kv_transfer_config)
    try:
        planned = AsyncEngineArgs.from_cli_args(args).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except (ValueError, AttributeError) as e:  # wrong values, and a connector that is looked for in our module
        logger.exception("vLLM's configuration can't be built")
        raise WrongEngine(f"vLLM refuses its arguments, look at extra_vllm_args: {str(e)[:_MAX_REASON_CHARS]}") from e
    check_connector(config, engine_id, planned.kv_transfer_config)
    check_plan(planned)


def _cli_args_module() -> ModuleType:
    """vLLM's server arguments; 0.33 moved the file."""
    try:
        return import_module("vllm.entrypoints.common.cli_args")
    except ModuleNotFoundError:
        return import_module("vllm.entrypoints.launchers.cli_args")


async def _serve(config: WorkerConfig, identity: WorkerIdentity, args: argparse.Namespace) -> None:
    # Bound before the model is loaded, so that a taken port fails at once.
    _, sock = setup_server(args, reuse_port=False)
    with sock:
        async with build_async_engine_client(args) as engine:
            check_connector(config, identity.engine_id, engine.vllm_config.kv_transfer_config)
            process = WorkerProcess(config, identity, engine)
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
    # vLLM has built its middleware already; ours goes around it, so that a stranger reaches nothing of it.
    guarded: App = HandoffGuard(
        app.middleware_stack or app.build_middleware_stack(),
        role=process.config.role,
        keys=process.identity.keys,
        is_registered=process.is_registered,
    )
    app.middleware_stack = ClusterAuth(guarded, process.identity.token) if process.identity.token else guarded
    return app


async def _serve_http(process: WorkerProcess, app: FastAPI, args: argparse.Namespace, sock: socket.socket) -> None:
    """Answer requests until a signal or the engine's death.

    Raises:
        RuntimeError: the server ended by itself, which it does only when the engine has died.
        RegistrationRefused: the router can pair this worker with no other.
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
    async with _registered(process) as beats:
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((http, stopping, beats), return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            stopping.cancel()
            if beats.done():
                await beats
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
async def _registered(process: WorkerProcess) -> AsyncIterator["asyncio.Task[Any]"]:
    """Heartbeats while inside, as a task that ends only when the router refuses this worker; it hears of the end."""
    async with httpx.AsyncClient(timeout=5.0) as client:
        heartbeat = Heartbeat(process, client) if process.config.router_url is not None else None
        if heartbeat is not None:
            process.refresh_peers = heartbeat.beat
        elif process.config.role is WorkerRole.DECODE and not process.config.kv_transfer.extra_peers:
            logger.warning("no router and no kv_transfer.extra_peers: every handoff will be refused as unregistered")
        beats = asyncio.create_task(heartbeat.run() if heartbeat is not None else asyncio.Event().wait())
        try:
            yield beats
        finally:
            beats.cancel()
            with suppress(asyncio.CancelledError, RegistrationRefused):
                await beats
            if heartbeat is not None:
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
