"""Routers as processes of their own."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.integration.router.api_answers import MODEL
from tests.integration.router.serving import unused_url
from wire.worker import WorkerRole

REPOSITORY = Path(__file__).resolve().parents[3]
START_LIMIT_S = 60.0


@asynccontextmanager
async def router_process(*arguments: str, **environ: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A router with a port of its own, as ``started`` has it, and its URL."""
    url = unused_url()
    async with started("--port", port_of(url), "--health-interval", "0.2", *arguments, **environ) as process:
        yield process, url


@asynccontextmanager
async def started(*arguments: str, **environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A router that may not listen yet; killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", *arguments),
        cwd=REPOSITORY,
        env=os.environ | environ,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def heartbeat(role: WorkerRole, url: str, **status: Any) -> dict[str, Any]:
    """Of a worker that pairs with the one of the other role, as the control routes take it."""
    registration = {
        "worker_id": f"{role}-0",
        "generation": "g1",
        "role": role,
        "url": url,
        "model": MODEL,
        "max_model_len": 8192,
        "block_size": 128,
        "row_bytes": 1000,
        "engine_id": f"{role}-0",
        "kv_host": "127.0.0.1",
        "kv_port": 5600,
        "fingerprint": {"max_model_len": "8192"},
    }
    return {"registration": registration, "status": {"state": "ready", **status}}


def port_of(url: str) -> str:
    return url.rsplit(":", 1)[1]


async def wait_until_listening(*urls: str) -> None:
    async with asyncio.timeout(START_LIMIT_S):
        while not all(map(is_listening, urls)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def wait_until_ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(START_LIMIT_S):
        while True:
            try:
                if (await http.get("/ready")).status_code == 200:
                    return
            except httpx.ConnectError:
                pass
            await asyncio.sleep(0.05)


async def wait_until_draining(http: httpx.AsyncClient) -> None:
    """Of a router that was ready."""
    async with asyncio.timeout(START_LIMIT_S):
        while True:
            if (await http.get("/ready")).status_code == 503:
                return
            await asyncio.sleep(0.01)


def is_listening(url: str) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", int(port_of(url)))) == 0
