"""When workers are full requests wait in line, in turn and not for ever, and hear at once when the line is too long."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.integration.router.conftest import TEXT, Cluster
from tests.integration.router.serving import eventually
from tests.integration.router.test_disconnects import LeavingClient, wait_for_disconnect
from tests.integration.router.test_failures import check_error, keep_one_pair, post

REFUSED = "tandem_router_admission_refused_total"


@pytest.fixture
def settings() -> dict[str, Any]:
    """One prompt at a time; two of this module's may wait."""
    return {"prefill_tokens_per_worker": 10, "max_queued_tokens": 20}


async def hold_prefill(cluster: Cluster) -> "asyncio.Task[httpx.Response]":
    """A request that keeps the only prefill worker busy until ``cluster.prefill.gate`` is set."""
    await keep_one_pair(cluster)
    cluster.prefill.faults.append("hold")
    task = asyncio.create_task(post(cluster))
    await eventually(lambda: cluster.prefill.bodies)
    return task


async def wait_for_queue(cluster: Cluster, length: int) -> None:
    await eventually(lambda: cluster.parts.lifecycle.admission.prefill.num_waiting == length)


def ask(cluster: Cluster, request_id: str, **fields: Any) -> "asyncio.Task[httpx.Response]":
    request = cluster.http.post("/v1/completions", json=TEXT | fields, headers={"x-request-id": request_id})
    return asyncio.create_task(request)


async def test_those_who_wait_are_served_by_priority_and_then_by_arrival(cluster: Cluster) -> None:
    cluster.parts.lifecycle.admission.prefill._max_queued_tokens = 1000
    tasks = [await hold_prefill(cluster)]
    for length, (request_id, priority) in enumerate({"late": 5, "first": -1, "second": 0, "third": 0}.items(), 1):
        tasks.append(ask(cluster, request_id, priority=priority))
        await wait_for_queue(cluster, length)
    assert await cluster.metric('tandem_router_queued_requests{role="prefill"}') == 4
    cluster.prefill.gate.set()
    assert {(await task).status_code for task in tasks} == {200}
    order = [headers["x-request-id"] for headers in cluster.prefill.headers[1:]]
    assert order == ["first", "second", "third", "late"]
    assert await cluster.metric("tandem_router_queue_wait_seconds_count") == 4
    assert await cluster.metric('tandem_router_tokens_in_flight{role="prefill"}') == 0
    assert await cluster.metric('tandem_router_tokens_in_flight{role="decode"}') == 0


async def test_decode_goes_on_with_the_last_while_prefill_has_the_next(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.decode.faults.append("hold")
    tasks = [asyncio.create_task(post(cluster)) for _ in range(2)]
    await eventually(lambda: len(cluster.prefill.bodies) == 2)
    cluster.decode.gate.set()
    assert {(await task).status_code for task in tasks} == {200}


async def test_a_full_queue_is_a_429_that_says_when_to_come_back(cluster: Cluster) -> None:
    tasks = [await hold_prefill(cluster), ask(cluster, "a"), ask(cluster, "b")]
    await wait_for_queue(cluster, 2)
    answer = await post(cluster)
    assert check_error(answer, 429)["code"] == "queue_full"
    assert answer.headers["retry-after"] == "1"
    assert await cluster.metric(f'{REFUSED}{{reason="queue_full"}}') == 1
    cluster.prefill.gate.set()
    assert {(await task).status_code for task in tasks} == {200}


async def test_a_client_that_leaves_the_queue_is_not_served_and_makes_room(cluster: Cluster) -> None:
    first = await hold_prefill(cluster)
    client = LeavingClient(cluster)
    await client.send(TEXT)
    await wait_for_queue(cluster, 1)
    await client.leave()
    await wait_for_queue(cluster, 0)
    await wait_for_disconnect(cluster, "queue")
    cluster.prefill.gate.set()
    assert (await first).status_code == 200
    assert len(cluster.prefill.bodies) == 1


async def test_a_worker_that_comes_takes_over_from_the_queue(cluster: Cluster) -> None:
    first = await hold_prefill(cluster)
    waiting = ask(cluster, "a")
    await wait_for_queue(cluster, 1)
    await cluster.beat(cluster.prefills[1])
    await cluster.beat(cluster.decode)
    assert (await waiting).status_code == 200
    assert len(cluster.prefills[1].bodies) == 1
    cluster.prefill.gate.set()
    assert (await first).status_code == 200


async def test_a_worker_that_goes_and_comes_back_finds_the_queue_still_there(cluster: Cluster) -> None:
    first = await hold_prefill(cluster)
    waiting = ask(cluster, "a")
    await wait_for_queue(cluster, 1)
    await cluster.keep_only(cluster.decode)
    check_error(await post(cluster), 503)
    cluster.prefill.gate.set()
    assert (await first).status_code == 200
    assert not waiting.done()
    await cluster.beat(cluster.prefill)
    await cluster.beat(cluster.decode)
    assert (await waiting).status_code == 200


async def test_what_waits_for_nothing_is_not_measured_as_waiting(cluster: Cluster) -> None:
    assert (await post(cluster)).status_code == 200
    assert await cluster.metric("tandem_router_queue_wait_seconds_count") == 0


class TestDeadline:
    """Nobody waits for ever."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"prefill_tokens_per_worker": 10, "queue_timeout_s": 0.1}

    async def test_a_wait_that_takes_too_long_is_a_504_and_no_worker_hears_of_it(self, cluster: Cluster) -> None:
        first = await hold_prefill(cluster)
        answer = await post(cluster)
        assert check_error(answer, 504)["code"] == "queue_timeout"
        assert int(answer.headers["retry-after"]) >= 1
        assert await cluster.metric(f'{REFUSED}{{reason="queue_timeout"}}') == 1
        cluster.prefill.gate.set()
        assert (await first).status_code == 200
        assert len(cluster.prefill.bodies) == 1


async def test_every_reason_is_shown_before_its_first_refusal(cluster: Cluster) -> None:
    text = (await cluster.http.get("/metrics")).text
    for reason in ("queue_full", "queue_timeout", "draining"):
        assert f'{REFUSED}{{reason="{reason}"}} 0.0' in text
