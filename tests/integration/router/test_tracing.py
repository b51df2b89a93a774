"""A request is one trace: its own span, one for each leg, and below those what workers make of what they are sent."""

from typing import Any

import pytest

from tests.integration.router.conftest import CHAT, TEXT, Cluster
from tests.integration.router.fake_workers import FakeWorker
from tests.integration.router.trace_collector import Collector, Span

CLIENT_TRACE, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT_PARENT = f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"


@pytest.fixture
def settings(collector: Collector) -> dict[str, Any]:
    return {"otlp_traces_endpoint": collector.url}


async def post(
    cluster: Cluster,
    body: dict[str, Any] = TEXT,
    path: str = "/v1/completions",
    *,
    request_id: str = "r",
    **headers: str,
) -> None:
    """A request that goes well."""
    answer = await cluster.http.post(path, json=body, headers={"x-request-id": request_id} | headers)
    assert answer.status_code == 200, answer.text


def sent_context(worker: FakeWorker, index: int = 0) -> tuple[str, str, str]:
    """Trace id, parent id and flags that a worker was sent."""
    version, trace_id, parent_id, flags = worker.headers[index]["traceparent"].split("-")
    assert version == "00"
    return trace_id, parent_id, flags


def check_inside(outer: Span, inner: Span) -> None:
    assert (inner.trace_id, inner.parent_id) == (outer.trace_id, outer.span_id)
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns


@pytest.mark.parametrize("is_stream", [False, True])
async def test_both_legs_are_below_the_request_and_above_the_workers(
    cluster: Cluster, collector: Collector, is_stream: bool
) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    await post(cluster, TEXT | {"stream": is_stream})
    trace = await collector.trace("r")
    assert (trace.root.name, trace.root.kind, trace.root.parent_id) == ("POST /v1/completions", "SERVER", "")
    assert trace.names == ["prefill", "decode"]
    prefill, decode = trace.steps
    for leg, worker in ((prefill, cluster.prefill), (decode, cluster.decode)):
        assert leg.kind == "CLIENT"
        check_inside(trace.root, leg)
        trace_id, parent_id, flags = sent_context(worker)
        assert (trace_id, parent_id) == (leg.trace_id, leg.span_id)
        assert int(flags, 16) & 1
        assert "tracestate" not in worker.headers[0]
    assert prefill.end_ns <= decode.start_ns <= decode.events["relay"] <= decode.end_ns


async def test_the_request_says_what_it_was_and_what_became_of_it(cluster: Cluster, collector: Collector) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    await post(cluster, CHAT | {"stream": True, "max_tokens": 7, "n": 2}, "/v1/chat/completions")
    root = (await collector.trace("r")).root
    attributes = dict(root.attributes)
    assert 0 < attributes.pop("gen_ai.response.time_to_first_chunk") < (root.end_ns - root.start_ns) / 1e9
    assert attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "server.address": "127.0.0.1",
        "server.port": 8000,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "nano",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": True,
        "tandem.request_id": "r",
        "tandem.stage": "done",
        "tandem.route": "prefill_decode",
        "tandem.route_reason": "handoff",
        "tandem.num_blocks": 3,
        "tandem.num_retries": 0,
        "tandem.prefill_worker_id": "prefill-0",
        "tandem.decode_worker_id": "decode-0",
    }
    assert not root.is_error


async def test_each_leg_says_where_it_went(cluster: Cluster, collector: Collector) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    await post(cluster)
    for span, worker in zip((await collector.trace("r")).steps, (cluster.prefill, cluster.decode), strict=True):
        url = cluster.urls[worker.name]
        assert span.attributes == {
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "url.full": f"{url}/v1/completions",
            "server.address": "127.0.0.1",
            "server.port": int(url.rsplit(":", 1)[1]),
            "tandem.worker_id": worker.name,
            "tandem.worker_role": span.name,
            "tandem.attempt": 1,
        } | ({"tandem.num_blocks": 3} if span.name == "prefill" else {})
        assert not span.is_error


async def test_a_clients_trace_goes_on_here_and_on_the_workers(cluster: Cluster, collector: Collector) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    await post(cluster, traceparent=CLIENT_PARENT, tracestate="a=1, b=2")
    trace = await collector.trace("r")
    assert (trace.root.trace_id, trace.root.parent_id) == (CLIENT_TRACE, CLIENT_SPAN)
    assert trace.root.state == "a=1,b=2"
    for leg, worker in zip(trace.steps, (cluster.prefill, cluster.decode), strict=True):
        assert sent_context(worker)[:2] == (CLIENT_TRACE, leg.span_id)
        assert worker.headers[0]["tracestate"] == "a=1,b=2"


@pytest.mark.parametrize("parent", ["1", f"00-{'0' * 32}-{CLIENT_SPAN}-01", f"{CLIENT_PARENT}-more"])
async def test_a_malformed_context_of_a_client_is_as_good_as_none(
    cluster: Cluster, collector: Collector, parent: str
) -> None:
    await post(cluster, traceparent=parent, tracestate="a=1")
    trace = await collector.trace("r")
    assert trace.root.parent_id == ""
    assert trace.root.trace_id != CLIENT_TRACE
    assert trace.root.state == ""


async def test_a_trace_that_the_client_does_not_sample_is_not_sampled_here_either(
    cluster: Cluster, collector: Collector
) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    await post(cluster, traceparent=f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-00")
    for worker in (cluster.prefill, cluster.decode):
        trace_id, parent_id, flags = sent_context(worker)
        assert (trace_id, flags) == (CLIENT_TRACE, "00")
        assert parent_id != CLIENT_SPAN
    await post(cluster, request_id="later")
    later = await collector.trace("later")
    assert {span.trace_id for span in collector.spans} == {later.root.trace_id}


async def test_two_requests_of_one_connection_are_two_traces(cluster: Cluster, collector: Collector) -> None:
    await post(cluster)
    await post(cluster, request_id="other")
    first, other = await collector.trace("r"), await collector.trace("other")
    assert first.root.trace_id != other.root.trace_id
    assert len(first.steps) == len(other.steps) == 2


@pytest.mark.parametrize(
    ("path", "operation"), [("/v1/responses", "chat"), ("/v1/messages", "chat"), ("/v1/completions", "text_completion")]
)
async def test_every_generating_endpoint_is_traced_by_its_own_name(
    cluster: Cluster, collector: Collector, path: str, operation: str
) -> None:
    bodies = {"/v1/responses": {"input": "hi"}, "/v1/messages": {"messages": CHAT["messages"], "max_tokens": 5}}
    await post(cluster, {"model": "nano"} | bodies.get(path, TEXT), path)
    trace = await collector.trace("r")
    assert (trace.root.name, trace.root["gen_ai.operation.name"]) == (f"POST {path}", operation)
    assert trace.names == ["prefill", "decode"]


async def test_what_one_worker_answers_has_one_leg(cluster: Cluster, collector: Collector) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    await post(cluster, {"model": "nano", "input": "hi"}, "/v1/embeddings")
    trace = await collector.trace("r")
    assert trace.names == ["one_worker"]
    assert trace.root["tandem.worker_id"] == trace.steps[0]["tandem.worker_id"] == "prefill-0"
    assert trace.steps[0]["tandem.worker_role"] == "prefill"
    assert sent_context(cluster.prefill)[:2] == (trace.root.trace_id, trace.steps[0].span_id)


async def test_a_request_for_decode_alone_says_why(cluster: Cluster, collector: Collector) -> None:
    await post(cluster, TEXT | {"prompt_logprobs": 1})
    trace = await collector.trace("r")
    assert trace.names == ["decode"]
    assert (trace.root["tandem.route"], trace.root["tandem.route_reason"]) == ("decode_only", "prompt_logprobs")


async def test_the_service_has_a_name(cluster: Cluster, collector: Collector) -> None:
    await post(cluster)
    await collector.trace("r")
    assert {resource["service.name"] for resource in collector.resources} == {"tandem-router"}
