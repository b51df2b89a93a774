"""A router over real HTTP with two fake workers of each role, registered by heartbeat."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn

from router.app import RouterParts, build_parts
from router.config import RouterConfig
from tests.integration.router.api_answers import MODEL
from tests.integration.router.fake_workers import FakeDecode, FakePrefill, FakeWorker
from tests.integration.router.serving import QuickAsyncio, eventually, served, served_all, served_router
from tests.integration.router.trace_collector import Collector
from wire.worker import HeartbeatReply, WorkerHeartbeat, WorkerRegistration, WorkerRole, WorkerState, WorkerStatus

TOKEN = "cluster-token"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "hi"}
BOTH_APIS = pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)], ids=["chat", "completions"]
)


@pytest.fixture(scope="session", autouse=True)
def servers_end_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", QuickAsyncio("asyncio"))
        yield


@dataclass
class Cluster:
    """What a test may reach: the router's parts and client, the fakes, and their URLs."""

    parts: RouterParts
    http: httpx.AsyncClient
    prefills: list[FakePrefill]
    decodes: list[FakeDecode]
    urls: dict[str, str] = field(default_factory=dict)

    @property
    def prefill(self) -> FakePrefill:
        return self.prefills[0]

    @property
    def decode(self) -> FakeDecode:
        return self.decodes[0]

    @property
    def num_leases(self) -> int:
        return sum(len(prefill.leases) for prefill in self.prefills)

    @property
    def granted(self) -> list[str]:
        return [handoff_id for prefill in self.prefills for handoff_id in prefill.granted]

    @property
    def released(self) -> list[str]:
        return [handoff_id for prefill in self.prefills for handoff_id in prefill.released]

    def registration(self, worker: FakeWorker, **replaced: Any) -> WorkerRegistration:
        fields = {
            "worker_id": worker.name,
            "generation": "g1",
            "role": WorkerRole.PREFILL if isinstance(worker, FakePrefill) else WorkerRole.DECODE,
            "url": self.urls[worker.name],
            "model": MODEL,
            "max_model_len": 8192,
            "block_size": 128,
            "row_bytes": 1000,
            "engine_id": worker.name,
            "kv_host": "127.0.0.1",
            "kv_port": 5600,
            "fingerprint": {"max_model_len": "8192"},
        }
        return WorkerRegistration.model_validate(fields | replaced)

    async def send_beat(
        self, registration: WorkerRegistration, *, state: WorkerState = WorkerState.READY, **status: Any
    ) -> httpx.Response:
        beat = WorkerHeartbeat(registration=registration, status=WorkerStatus(state=state, **status))
        return await self.http.post("/internal/workers", content=beat.model_dump_json(), headers=cluster_headers())

    async def beat(
        self, worker: FakeWorker, *, url: str | None = None, state: WorkerState = WorkerState.READY, **status: Any
    ) -> HeartbeatReply:
        registration = self.registration(worker, **({} if url is None else {"url": url}))
        answer = await self.send_beat(registration, state=state, **status)
        assert answer.status_code == 200, answer.text
        return HeartbeatReply.model_validate_json(answer.content)

    async def keep_only(self, *workers: FakeWorker) -> None:
        """The other workers leave."""
        for other in [*self.prefills, *self.decodes]:
            if other not in workers:
                await self.http.delete(f"/internal/workers/{other.name}", headers=cluster_headers())

    async def metric(self, sample: str) -> float:
        """The value of one exposition line, named with its labels; 0 if it isn't there."""
        text = (await self.http.get("/metrics")).text
        return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample + " ")), 0.0)

    async def check_nothing_left(self) -> None:
        """No lease, no release under way, nothing in flight."""
        await eventually(lambda: self.num_leases == 0 and self.parts.releaser.num_pending == 0)
        await eventually(lambda: all(w.num_in_flight == w.tokens_in_flight == 0 for w in self.parts.registry.workers()))
        assert await self.metric("tandem_router_requests_in_flight") == 0


def cluster_headers() -> dict[str, str]:
    return {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}


@pytest.fixture
def settings() -> dict[str, Any]:
    """Settings of the router; a test module may override this fixture."""
    return {}


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """A collector of traces, to which a router that is made from now on sends them soon."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    collector = Collector()
    async with served(collector.app()) as url:
        collector.url = url
        yield collector


@pytest.fixture
async def cluster(settings: dict[str, Any]) -> AsyncIterator[Cluster]:
    config = RouterConfig.model_validate({"cluster_token": TOKEN, "heartbeat_ttl_s": 600} | settings)
    parts = build_parts(config)
    prefills = [FakePrefill(f"prefill-{i}", token=TOKEN) for i in range(2)]
    by_name = {prefill.name: prefill for prefill in prefills}
    decodes = [FakeDecode(f"decode-{i}", token=TOKEN, prefills=by_name) for i in range(2)]
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served_router(parts))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=10))
        cluster = Cluster(parts, http, prefills, decodes)
        workers = [*prefills, *decodes]
        urls = await stack.enter_async_context(served_all([worker.app() for worker in workers]))
        for worker, worker_url in zip(workers, urls, strict=True):
            cluster.urls[worker.name] = worker_url
            await cluster.beat(worker)
        yield cluster
        await cluster.check_nothing_left()
