"""A static worker is usable while its probes are good; one late answer is not the end of it."""

from collections.abc import Mapping
from typing import Any

import pytest

from router.dialects import NIXL, TANDEM, Dialect
from router.health import NUM_SILENT_PROBES, HealthProber
from router.registry import WorkerRegistry
from router.worker_client import WorkerAnswer, WorkerBroken, WorkerTimeout, WorkerUnreachable
from router.workers import Worker
from tests.unit.router.factories import ManualClock
from wire.worker import WorkerRole

MODELS = b'{"object":"list","data":[{"id":"nano","max_model_len":8192}]}'


class ScriptedClient:
    """Answers ``GET`` by path; an exception in the script is raised."""

    def __init__(self) -> None:
        self.script: dict[str, Any] = {}
        self.be_good()

    def be_good(self) -> None:
        self.script = {
            "/health": WorkerAnswer(200, {}, b""),
            "/v1/models": WorkerAnswer(200, {}, MODELS),
            "/tandem/status": WorkerAnswer(200, {}, b"{}"),
        }

    async def get(self, url: str, headers: Mapping[str, str], *, timeout_s: float) -> WorkerAnswer:
        answer = self.script[url.removeprefix("http://w")]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, WorkerAnswer)
        return answer


@pytest.fixture
def client() -> ScriptedClient:
    return ScriptedClient()


@pytest.fixture
def registry() -> WorkerRegistry:
    return WorkerRegistry(ttl_s=6, clock=ManualClock())


@pytest.fixture
def worker(registry: WorkerRegistry) -> Worker:
    return registry.add_static(WorkerRole.DECODE, "http://w")


@pytest.fixture
def prober(client: ScriptedClient, registry: WorkerRegistry) -> HealthProber:
    return HealthProber(registry=registry, client=client, headers={}, interval_s=1, timeout_s=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("status", "dialect"), [(200, TANDEM), (401, TANDEM), (404, NIXL)])
async def test_a_worker_without_tandems_route_is_stock_vllm(
    prober: HealthProber, worker: Worker, client: ScriptedClient, status: int, dialect: Dialect
) -> None:
    client.script["/tandem/status"] = WorkerAnswer(status, {}, b"")
    await prober.probe(worker)
    assert worker.is_usable
    assert worker.dialect is dialect


async def test_a_worker_that_does_not_say_which_it_is_is_not_usable(
    prober: HealthProber, worker: Worker, client: ScriptedClient
) -> None:
    client.script["/tandem/status"] = WorkerBroken("gone")
    await prober.probe(worker)
    assert not worker.is_usable


async def test_a_good_probe_makes_a_worker_usable_and_tells_its_model(prober: HealthProber, worker: Worker) -> None:
    await prober.probe(worker)
    assert (worker.is_usable, worker.model, worker.max_model_len) == (True, "nano", 8192)


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/health", WorkerAnswer(503, {}, b"")),
        ("/health", WorkerUnreachable("x")),
        ("/health", WorkerBroken("x")),
        ("/v1/models", WorkerAnswer(500, {}, b"")),
        ("/v1/models", WorkerAnswer(200, {}, b"<html>")),
        ("/v1/models", WorkerAnswer(200, {}, b'{"data":[]}')),
    ],
)
async def test_a_bad_probe_makes_it_unusable_at_once_until_the_next_good_one(
    prober: HealthProber, client: ScriptedClient, worker: Worker, path: str, answer: Any
) -> None:
    await prober.probe(worker)
    client.script[path] = answer
    await prober.probe(worker)
    assert not worker.is_usable
    client.be_good()
    await prober.probe(worker)
    assert worker.is_usable


async def test_silence_counts_only_when_repeated(prober: HealthProber, client: ScriptedClient, worker: Worker) -> None:
    await prober.probe(worker)
    for _ in range(2):
        client.script["/health"] = WorkerTimeout("x")
        for _ in range(NUM_SILENT_PROBES - 1):
            await prober.probe(worker)
            assert worker.is_usable
        client.be_good()
        await prober.probe(worker)
    client.script["/health"] = WorkerTimeout("x")
    for _ in range(NUM_SILENT_PROBES):
        await prober.probe(worker)
    assert not worker.is_usable
    client.be_good()
    await prober.probe(worker)
    assert worker.is_usable


async def test_a_good_probe_clears_a_suspicion(prober: HealthProber, worker: Worker) -> None:
    await prober.probe(worker)
    worker.is_suspect = True
    await prober.probe(worker)
    assert worker.is_usable


async def test_every_name_that_a_worker_lists_is_served_the_first_is_its_own(
    prober: HealthProber, client: ScriptedClient, registry: WorkerRegistry, worker: Worker
) -> None:
    cards = b'[{"id":"nano","max_model_len":8192},{"id":"lora"},{"id":"nano"},{"id":"alias","max_model_len":8192}]'
    client.script["/v1/models"] = WorkerAnswer(200, {}, b'{"data":' + cards + b"}")
    await prober.probe(worker)
    assert (worker.model, worker.models, worker.max_model_len) == ("nano", ("nano", "lora", "alias"), 8192)
    assert list(registry.pools().models) == ["nano", "lora", "alias"]
    client.be_good()
    await prober.probe(worker)
    assert list(registry.pools().models) == ["nano"]
