"""However a request ends, its spans end too, say why, and hold nothing of what was said."""

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from tests.integration.router.conftest import BOTH_APIS, TEXT, Cluster
from tests.integration.router.serving import eventually, unused_url
from tests.integration.router.test_disconnects import STREAM, LeavingClient
from tests.integration.router.test_queue import wait_for_queue
from tests.integration.router.trace_collector import Collector, Span
from wire.worker import WorkerState

ASKS = {"x-request-id": "r"}
HUSH = "hush-this-is-the-prompt"


@pytest.fixture
def settings(collector: Collector, request: pytest.FixtureRequest) -> dict[str, Any]:
    more: dict[str, Any] = getattr(request, "param", {})
    return {"otlp_traces_endpoint": collector.url} | more


def with_settings(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("settings", [settings], indirect=True)


async def post(cluster: Cluster, body: dict[str, Any] = TEXT) -> httpx.Response:
    return await cluster.http.post("/v1/completions", json=body, headers=ASKS)


def outcome(span: Span) -> tuple[Any, Any]:
    """Error and status; None where there is none. What has an error type is an error, and the other way round."""
    assert span.is_error == ("error.type" in span.attributes)
    return span.attributes.get("error.type"), span.attributes.get("http.response.status_code")


# --- a worker's fault ---


@pytest.mark.parametrize("status", [500, 503])
async def test_each_attempt_has_a_span_of_its_own(cluster: Cluster, collector: Collector, status: int) -> None:
    cluster.prefill.faults.append(status)
    assert (await post(cluster)).status_code == 200
    trace = await collector.trace("r")
    assert trace.names == ["prefill", "prefill", "decode"]
    kind = "WorkerUnavailable" if status == 503 else "WorkerFailed"
    assert [outcome(span) for span in trace.steps] == [(kind, status), (None, 200), (None, 200)]
    assert [span["tandem.attempt"] for span in trace.steps] == [1, 2, 2]
    assert [span["tandem.worker_id"] for span in trace.steps[:2]] == ["prefill-0", "prefill-1"]
    assert outcome(trace.root) == (None, 200)
    assert trace.root["tandem.num_retries"] == 1
    parents = [worker.headers[0]["traceparent"].split("-")[2] for worker in cluster.prefills]
    assert parents == [span.span_id for span in trace.steps[:2]]


async def test_decode_that_refuses_a_handoff_costs_a_new_prefill(cluster: Cluster, collector: Collector) -> None:
    cluster.decode.faults.append((409, "expired"))
    assert (await post(cluster)).status_code == 200
    trace = await collector.trace("r")
    assert trace.names == ["prefill", "decode", "prefill", "decode"]
    assert outcome(trace.steps[1]) == ("HandoffRefused", 409)


async def test_a_request_that_fails_is_an_error_as_its_last_attempt_was(cluster: Cluster, collector: Collector) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.prefill.faults.extend([500, 500])
    assert (await post(cluster)).status_code == 502
    trace = await collector.trace("r")
    assert [outcome(span) for span in trace.steps] == [("WorkerFailed", 500), ("WorkerFailed", 500)]
    assert outcome(trace.root) == ("WorkerFailed", 502)
    assert trace.root["tandem.stage"] == "prefill"


async def test_a_worker_that_is_not_there_has_no_status(cluster: Cluster, collector: Collector) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    url = unused_url()
    await cluster.beat(cluster.prefill, url=url)
    assert (await post(cluster)).status_code == 503
    trace = await collector.trace("r")
    assert outcome(trace.steps[0]) == ("WorkerUnreachable", None)
    assert trace.steps[0]["url.full"] == f"{url}/v1/completions"
    assert outcome(trace.root) == ("NoWorker", 503)
    assert trace.root["tandem.error_code"] == "no_worker"


@pytest.mark.parametrize("fault", ["break_midway", "no_done"])
async def test_a_stream_that_breaks_is_an_error_behind_a_good_status(
    cluster: Cluster, collector: Collector, fault: str
) -> None:
    cluster.decode.faults.append(fault)
    cluster.decodes[1].faults.append(fault)
    assert (await post(cluster, STREAM)).status_code == 200
    trace = await collector.trace("r")
    assert [outcome(span) for span in trace.steps] == [(None, 200), ("WorkerBroken", None)]
    assert outcome(trace.root) == ("WorkerBroken", 200)
    assert trace.root["tandem.stage"] == "relay"


@with_settings(no_prefill="decode_only")
async def test_a_request_that_survives_without_prefill_says_so(cluster: Cluster, collector: Collector) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.prefill.faults.extend([500, 500])
    assert (await post(cluster)).status_code == 200
    trace = await collector.trace("r")
    assert trace.names == ["prefill", "prefill", "decode"]
    assert (trace.root["tandem.route"], trace.root["tandem.route_reason"]) == ("decode_only", "prefill_failed")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize"])
async def test_one_worker_that_fails_is_tried_once_more_too(cluster: Cluster, collector: Collector, path: str) -> None:
    cluster.prefill.faults.append("break")
    body = {"model": "nano", "input": "hi", "prompt": "hi"}
    assert (await cluster.http.post(path, json=body, headers=ASKS)).status_code == 200
    trace = await collector.trace("r")
    assert [outcome(span) for span in trace.steps] == [("WorkerBroken", None), (None, 200)]


# --- the client's ---


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_what_a_worker_refuses_is_its_legs_error_alone(cluster: Cluster, collector: Collector, leg: str) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    (cluster.prefill if leg == "prefill" else cluster.decode).faults.append(422)
    assert (await post(cluster)).status_code == 422
    trace = await collector.trace("r")
    assert (trace.names[-1], outcome(trace.steps[-1])) == (leg, ("422", 422))
    assert outcome(trace.root) == (None, 422)


async def test_what_is_not_admitted_names_no_model(cluster: Cluster, collector: Collector) -> None:
    assert (await post(cluster, {"model": HUSH, "prompt": "hi"})).status_code == 404
    trace = await collector.trace("r")
    assert (trace.names, outcome(trace.root)) == ([], (None, 404))
    assert trace.root["tandem.error_code"] == "model_not_found"
    assert trace.root["tandem.stage"] == "admit"
    assert "gen_ai.request.model" not in trace.root.attributes


async def test_a_client_that_leaves_is_marked_and_is_no_error(cluster: Cluster, collector: Collector) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.decode.faults.append("hang_midway")
    client = LeavingClient(cluster)
    await client.send(STREAM)
    await client.reader.readuntil(cluster.decode.pieces[0])
    await client.leave()
    await eventually(lambda: collector.roots)
    [root] = collector.roots
    decode = next(span for span in collector.spans if span.name == "decode")
    assert (outcome(root), outcome(decode)) == ((None, 499), (None, None))
    assert root["tandem.client_left"] is decode["tandem.client_left"] is True
    assert root["tandem.stage"] == "relay"
    prefill = next(span for span in collector.spans if span.name == "prefill")
    assert "tandem.client_left" not in prefill.attributes


@with_settings(request_timeout_s=0.2)
async def test_a_request_out_of_time_ends_its_leg_with_it(cluster: Cluster, collector: Collector) -> None:
    cluster.prefill.faults.append("hang")
    assert (await post(cluster)).status_code == 504
    trace = await collector.trace("r")
    assert outcome(trace.steps[0]) == ("RequestTimedOut", None)
    assert outcome(trace.root) == ("RequestTimedOut", 504)


# --- the queue ---


@with_settings(prefill_tokens_per_worker=10, max_queued_tokens=10)
async def test_a_wait_in_line_is_a_span_and_so_is_one_in_vain(cluster: Cluster, collector: Collector) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.prefill.faults.append("hold")
    first = asyncio.create_task(cluster.http.post("/v1/completions", json=TEXT))
    await eventually(lambda: cluster.prefill.bodies)
    second = asyncio.create_task(post(cluster))
    await wait_for_queue(cluster, 1)
    third = await cluster.http.post("/v1/completions", json=TEXT, headers={"x-request-id": "third"})
    assert third.status_code == 429
    cluster.prefill.gate.set()
    assert (await first).status_code == (await second).status_code == 200
    waited, refused = await collector.trace("r"), await collector.trace("third")
    assert waited.names == ["queue", "prefill", "decode"]
    queue = waited.steps[0]
    assert (queue.kind, outcome(queue), queue.parent_id) == ("INTERNAL", (None, None), waited.root.span_id)
    assert queue.end_ns <= waited.steps[1].start_ns
    assert (refused.names, outcome(refused.steps[0])) == (["queue"], ("Overloaded", None))
    assert (outcome(refused.root), refused.root["tandem.error_code"]) == ((None, 429), "queue_full")


# --- any way out ---


async def test_every_span_of_clients_that_come_and_go_ends(cluster: Cluster, collector: Collector) -> None:
    moments = random.Random(7)
    for worker in [*cluster.prefills, *cluster.decodes]:
        faults = [None, "hang", 500, "break"] + (["hang_midway"] if worker in cluster.decodes else [])
        worker.faults.extend(moments.choice(faults) for _ in range(40))

    async def come_and_go() -> None:
        client = LeavingClient(cluster)
        await client.send(moments.choice([TEXT, STREAM]))
        await asyncio.sleep(moments.random() / 10)
        await client.leave()

    for _ in range(4):
        await asyncio.gather(*(come_and_go() for _ in range(10)))
    await eventually(lambda: len(collector.roots) == 40)
    begun = {
        headers["traceparent"].split("-")[2] for w in [*cluster.prefills, *cluster.decodes] for headers in w.headers
    }
    ended = {span.span_id for span in collector.spans}
    assert begun <= ended
    assert {span.parent_id for span in collector.spans} <= ended | {""}


@BOTH_APIS
async def test_nothing_that_was_said_is_in_any_span(
    cluster: Cluster, collector: Collector, path: str, body: dict[str, Any]
) -> None:
    said = json.loads(json.dumps(body).replace('"hi"', f'"{HUSH}"'))
    hushed = {"authorization": f"Bearer {HUSH}", "x-api-key": HUSH, "user-agent": HUSH, "cookie": HUSH, "x-mine": HUSH}
    cluster.decode.pieces = [f'data: {{"error": {{"message": "{HUSH}", "code": 400}}}}\n\n'.encode()]
    cluster.decodes[1].whole = HUSH.encode()
    cluster.prefill.faults.extend([None, 400, 500, "no_handoff"])
    variants = [said, said | {"stream": True}, said | {"temperature": HUSH}, said | {"model": HUSH}, said | {"n": 0}]
    num_sent = 0
    for variant in variants * 3:
        await cluster.http.post(f"{path}?q={HUSH}", json=variant, headers=hushed)
        num_sent += 1
    await cluster.http.post(path, content=f"{{{HUSH}", headers=hushed)
    await cluster.beat(cluster.prefill, state=WorkerState.DRAINING)
    await eventually(lambda: len(collector.roots) == num_sent + 1)
    assert not any(HUSH.encode() in raw for raw in collector.raw)
