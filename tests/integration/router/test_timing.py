"""On request a client is told, in its answer's head, where the time went; nobody else is."""

import asyncio
from typing import Any

import pytest

from router.endpoints import Stage
from tests.integration.router.conftest import TEXT, Cluster
from tests.integration.router.serving import eventually
from wire.worker import WorkerState

ASKS = {"x-tandem-timing": "1"}
STAGES = [Stage.ADMIT, Stage.SELECT, Stage.PREFILL, Stage.DECODE]


def parts_of(header: str) -> dict[str, float]:
    """Milliseconds by name of a ``server-timing`` header."""
    entries = [entry.strip().split(";") for entry in header.split(",")]
    assert all(len(entry) == 2 and entry[1].startswith("dur=") for entry in entries)
    return {name: float(duration.removeprefix("dur=")) for name, duration in entries}


@pytest.mark.parametrize("body", [TEXT, TEXT | {"stream": True}])
async def test_a_client_that_asks_is_told_where_the_time_went(cluster: Cluster, body: dict[str, Any]) -> None:
    answer = await cluster.http.post("/v1/completions", json=body, headers=ASKS)
    spent_ms = parts_of(answer.headers["server-timing"])
    assert list(spent_ms) == STAGES
    assert all(duration >= 0 for duration in spent_ms.values())
    assert 0 < sum(spent_ms.values()) < 1000 * answer.elapsed.total_seconds()


async def test_time_on_prefill_is_not_time_on_decode(cluster: Cluster) -> None:
    for prefill in cluster.prefills:
        prefill.faults.append("hold")
    asking = asyncio.create_task(cluster.http.post("/v1/completions", json=TEXT, headers=ASKS))
    await eventually(lambda: any(prefill.bodies for prefill in cluster.prefills))
    await asyncio.sleep(0.2)
    for prefill in cluster.prefills:
        prefill.gate.set()
    spent_ms = parts_of((await asking).headers["server-timing"])
    assert spent_ms["prefill"] >= 190


async def test_a_failed_attempt_is_part_of_the_sum(cluster: Cluster) -> None:
    cluster.decode.faults.append(503)
    await cluster.keep_only(cluster.prefill, cluster.decode)
    answer = await cluster.http.post("/v1/completions", json=TEXT, headers=ASKS)
    assert answer.status_code == 200
    assert len(cluster.prefill.bodies) == 2
    assert list(parts_of(answer.headers["server-timing"])) == STAGES


async def test_an_error_tells_it_too_up_to_where_it_came(cluster: Cluster) -> None:
    await cluster.beat(cluster.prefill, state=WorkerState.DRAINING)
    await cluster.keep_only(cluster.prefill, cluster.decode)
    answer = await cluster.http.post("/v1/completions", json=TEXT, headers=ASKS)
    assert answer.status_code == 503
    assert list(parts_of(answer.headers["server-timing"])) == STAGES[:2]


@pytest.mark.parametrize("headers", [{}, {"x-tandem-timing": "0"}, {"x-tandem-timing": ""}])
async def test_who_does_not_ask_is_told_nothing(cluster: Cluster, headers: dict[str, str]) -> None:
    answer = await cluster.http.post("/v1/completions", json=TEXT, headers=headers)
    assert "server-timing" not in answer.headers
