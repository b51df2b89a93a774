"""A worker that keeps failing is left alone, tried again, and never the reason that nobody is served."""

import asyncio
from typing import Any

import pytest

from router.registry import WorkerRegistry
from router.workers import BreakerState
from tests.integration.router.conftest import TEXT, Cluster, cluster_headers
from tests.integration.router.serving import eventually
from tests.integration.router.test_failures import check_error, keep_one_pair, post

OPEN = 'tandem_router_breaker_open{role="%s"}'
TRIPS = 'tandem_router_breaker_trips_total{role="%s"}'


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"breaker_failures": 2, "breaker_open_s": 600, "breaker_max_open_s": 600}


def end_waits(registry: WorkerRegistry) -> None:
    """As if every open breaker's time were over."""
    for worker in registry.workers():
        if worker.breaker is BreakerState.OPEN:
            worker.breaker_end_s = 0.0
    registry.refresh()


async def test_a_prefill_that_keeps_failing_gets_nothing_more(cluster: Cluster) -> None:
    cluster.prefill.faults.extend([500] * 10)
    for _ in range(8):
        assert (await post(cluster)).status_code == 200
    assert len(cluster.prefill.bodies) == 2
    assert await cluster.metric(OPEN % "prefill") == 1
    assert await cluster.metric(OPEN % "decode") == 0
    assert await cluster.metric(TRIPS % "prefill") == 1
    listed = (await cluster.http.get("/internal/workers", headers=cluster_headers())).json()["workers"]
    assert [worker["breaker"] for worker in listed] == ["open", "closed", "closed", "closed"]


async def test_a_decode_that_keeps_failing_gets_nothing_more(cluster: Cluster) -> None:
    cluster.decode.faults.extend([500] * 10)
    statuses = [(await post(cluster)).status_code for _ in range(10)]
    assert statuses.count(502) == 2
    assert statuses[-6:] == [200] * 6
    assert await cluster.metric(OPEN % "decode") == 1


async def test_streams_that_break_count_against_decode(cluster: Cluster) -> None:
    cluster.decode.faults.extend(["break_midway"] * 10)
    for _ in range(10):
        await post(cluster, TEXT | {"stream": True})
    assert cluster.decode.num_started == 2
    assert await cluster.metric(TRIPS % "decode") == 1


async def test_requests_that_one_worker_answers_count_too(cluster: Cluster) -> None:
    cluster.prefill.faults.extend([500] * 10)
    statuses = [(await cluster.http.post("/tokenize", json=TEXT)).status_code for _ in range(8)]
    assert statuses.count(502) == 2
    assert len(cluster.prefill.bodies) == 2
    assert await cluster.metric(OPEN % "prefill") == 1


@pytest.mark.parametrize("fault", [400, 422, (409, "replayed")], ids=str)
async def test_a_clients_error_or_a_refused_handoff_opens_nothing(cluster: Cluster, fault: Any) -> None:
    await keep_one_pair(cluster)
    for _ in range(5):
        cluster.prefill.faults.append(fault)
        await post(cluster)
        cluster.decode.faults.append(fault)
        await post(cluster)
    assert await cluster.metric(TRIPS % "prefill") == 0
    assert await cluster.metric(TRIPS % "decode") == 0


async def test_a_client_that_leaves_opens_nothing_and_settles_no_probe(cluster: Cluster) -> None:
    cluster.prefill.faults.extend([500, 500])
    for _ in range(4):
        await post(cluster)
    end_waits(cluster.parts.registry)
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.prefill.faults.append("hang")
    answer = await cluster.http.post("/v1/completions", json=TEXT, headers={"x-request-timeout": "0.1"})
    assert answer.status_code == 504
    [worker] = [w for w in cluster.parts.registry.workers() if w.worker_id == "prefill-0"]
    assert worker.breaker.value == "half_open"
    assert (await post(cluster)).status_code == 200
    assert worker.breaker.value == "closed"


async def test_after_its_time_one_request_tries_it_and_a_good_end_brings_it_back(cluster: Cluster) -> None:
    cluster.prefill.faults.extend([500, 500, "hold"])
    for _ in range(4):
        await post(cluster)
    end_waits(cluster.parts.registry)
    tasks = [asyncio.create_task(post(cluster)) for _ in range(4)]
    await eventually(lambda: sum(task.done() for task in tasks) == 3)
    assert len(cluster.prefill.bodies) == 3
    cluster.prefill.gate.set()
    assert {(await task).status_code for task in tasks} == {200}
    assert await cluster.metric(OPEN % "prefill") == 0
    await post(cluster)
    await post(cluster)
    assert len(cluster.prefill.bodies) > 3


async def test_where_all_are_open_a_request_is_the_probe_and_not_refused(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.prefill.faults.extend([500, 500])
    check_error(await post(cluster), 502)
    assert await cluster.metric(OPEN % "prefill") == 1
    assert (await cluster.http.get("/ready")).status_code == 200
    assert (await post(cluster)).status_code == 200
    assert await cluster.metric(OPEN % "prefill") == 0


class TestTimeouts:
    """Silence is a failure of the worker's too."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"breaker_failures": 2, "breaker_open_s": 600, "prefill_timeout_s": 0.1}

    async def test_a_prefill_that_stays_silent_gets_nothing_more(self, cluster: Cluster) -> None:
        cluster.prefill.faults.extend(["hang"] * 10)
        statuses = [(await post(cluster)).status_code for _ in range(8)]
        assert statuses.count(504) == 2
        assert len(cluster.prefill.bodies) == 2
