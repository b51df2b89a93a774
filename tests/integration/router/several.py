"""A router of several real processes, in front of a fake worker of each role."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.integration.router.api_answers import MODEL
from tests.integration.router.conftest import TEXT
from tests.integration.router.fake_workers import FakeDecode, FakePrefill
from tests.integration.router.processes import START_LIMIT_S, heartbeat, port_of, router_process
from tests.integration.router.serving import eventually, served, unused_url
from wire.worker import WorkerRole

NUM_PROCESSES = 2
# Connections are spread by a hash of their ports: that all of so many go to one of two processes happens once in 2^31.
NUM_REQUESTS = 32
PROCESS_CHARS = 16
ANSWERING, MISSING = (f'tandem_router_processes{{state="{state}"}}' for state in ("answering", "missing"))
GOOD = f'tandem_router_requests_total{{code="200",endpoint="completions",model="{MODEL}",path="prefill_decode"}}'
IN_FLIGHT = "tandem_router_requests_in_flight"


@dataclass
class Several:
    """What a test may reach. Each request of ``http`` has a connection of its own, those of ``control`` share one."""

    process: asyncio.subprocess.Process
    url: str
    control_url: str
    http: httpx.AsyncClient
    control: httpx.AsyncClient
    prefill: FakePrefill
    decode: FakeDecode
    worker_urls: tuple[str, str]

    def children(self) -> list[int]:
        """Process ids."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    async def beat(self, **status: Any) -> None:
        """Heartbeats of both workers: prefill's first, as decode is told of it."""
        for role, url in zip((WorkerRole.PREFILL, WorkerRole.DECODE), self.worker_urls, strict=True):
            answer = await self.control.post("/internal/workers", json=heartbeat(role, url, **status))
            assert answer.status_code == 200, answer.text

    async def post(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json=TEXT | fields)

    async def ask_all(self) -> list[str]:
        """Which process served each of many good requests."""
        answers = [await self.post() for _ in range(NUM_REQUESTS)]
        assert [answer.status_code for answer in answers] == [200] * NUM_REQUESTS
        return [process_of(answer) for answer in answers]

    async def metrics(self) -> dict[str, float]:
        """Each line's value by all that is before it."""
        lines = (await self.control.get("/metrics")).text.splitlines()
        samples = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        assert len({name for name, _ in samples}) == len(samples)
        return {name: float(value) for name, value in samples}

    async def wait_until_all_serve(self) -> None:
        async with asyncio.timeout(START_LIMIT_S):
            while (await self.metrics())[ANSWERING] < NUM_PROCESSES:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def wait_until_told(self, status: int) -> None:
        """By many probes of readiness, on connections of their own."""
        async with asyncio.timeout(START_LIMIT_S):
            while {(await self.http.get("/ready")).status_code for _ in range(NUM_REQUESTS // 2)} != {status}:
                pass


def process_of(answer: httpx.Response) -> str:
    """What all ids have in common that one process makes up."""
    return str(answer.headers["x-request-id"][:PROCESS_CHARS])


def counters(metrics: dict[str, float]) -> dict[str, float]:
    """Those that must not go backwards."""
    ends = ("_total", "_count", "_sum")
    return {name: value for name, value in metrics.items() if "_bucket{" in name or name.split("{")[0].endswith(ends)}


@asynccontextmanager
async def several(*arguments: str) -> AsyncIterator[Several]:
    """All processes serve; both workers are registered, and taken to be there without further heartbeats."""
    prefill = FakePrefill("prefill-0")
    decode = FakeDecode("decode-0", prefills={"prefill-0": prefill})
    control_url = unused_url()
    flags = ("--processes", str(NUM_PROCESSES), "--metrics-port", port_of(control_url), "--heartbeat-ttl", "600")
    async with (
        served(prefill.app()) as prefill_url,
        served(decode.app()) as decode_url,
        router_process(*flags, *arguments) as (process, url),
        httpx.AsyncClient(base_url=url, timeout=30, headers={"connection": "close"}) as http,
        httpx.AsyncClient(base_url=control_url, timeout=30) as control,
    ):
        made = Several(process, url, control_url, http, control, prefill, decode, (prefill_url, decode_url))
        await _wait_until_listening(control)
        await made.beat()
        await made.wait_until_all_serve()
        yield made
        await eventually(lambda: prefill.leases == {})


async def _wait_until_listening(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(START_LIMIT_S):
        while True:
            try:
                await http.get("/health")
            except httpx.ConnectError:
                await asyncio.sleep(0.05)
            else:
                return
