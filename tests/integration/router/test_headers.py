"""Which headers cross the router: by name what workers see of a client and a client of workers, and nothing else."""

from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.integration.router.conftest import CHAT, TEXT, TOKEN, Cluster
from tests.integration.router.fake_workers import FakeWorker
from wire.errors import UpstreamError

SEEN_BY_WORKERS = {
    *("host", "accept-encoding", "user-agent", "content-type", "authorization", "content-length", "x-request-id"),
}
OF_A_TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1,b=2"}
# Everything that a client could try to reach a worker with, or that something on its way may add.
OF_A_CLIENT = {
    "authorization": "Bearer client-key",
    "x-api-key": "client-key",
    "anthropic-version": "2023-06-01",
    "cookie": "a=b",
    "accept": "text/event-stream",
    "accept-encoding": "gzip, br",
    "content-type": "application/json; charset=utf-8",
    "user-agent": "evil/1.0",
    "origin": "http://evil",
    "referer": "http://evil",
    "x-forwarded-for": "10.0.0.1",
    "x-real-ip": "10.0.0.1",
    "forwarded": "for=10.0.0.1",
    "traceparent": "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
    "tracestate": "a=1",
    "baggage": "a=1",
    "x-data-parallel-rank": "1",
    "x-tandem-timing": "0",
    "x-tandem-handoff-refused": "expired",
    "expect": "100-continue",
    "te": "trailers",
    "range": "bytes=0-1",
    "x-mine": "1",
    "x-request-id": "mine-1",
}
OF_A_WORKER = [
    (b"server", b"engine"),
    (b"x-engine-secret", b"1"),
    (b"set-cookie", b"a=b"),
    (b"x-request-id", b"theirs"),
    (b"server-timing", b"engine;dur=1"),
    (b"access-control-allow-origin", b"*"),
    (b"location", b"http://10.0.0.1/"),
    (b"www-authenticate", b"Bearer"),
    (b"alt-svc", b"h2"),
    (b"cache-control", b"no-store"),
]


Seen = list[tuple[str, dict[str, str]]]


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Path and headers of each request to a worker; each of their answers says much about the worker."""
    requests: Seen = []
    quiet_app = FakeWorker.app

    def app(worker: FakeWorker) -> ASGIApp:
        inner = quiet_app(worker)

        async def talkative(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_more(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], *OF_A_WORKER]
                await send(message)

            if scope["type"] == "http":
                requests.append((scope["path"], {n.decode(): v.decode() for n, v in scope["headers"]}))
            await inner(scope, receive, send_more)

        return talkative

    monkeypatch.setattr(FakeWorker, "app", app)
    return requests


@pytest.mark.parametrize("body", [TEXT, TEXT | {"stream": True}, TEXT | {"prompt_logprobs": 1}])
async def test_workers_see_headers_of_the_routers_own_and_the_request_id(
    cluster: Cluster, seen: Seen, body: dict[str, Any]
) -> None:
    assert (await cluster.http.post("/v1/completions", json=body, headers=OF_A_CLIENT)).status_code == 200
    assert seen
    for _, headers in seen:
        assert headers.keys() == SEEN_BY_WORKERS
        assert headers["authorization"] == f"Bearer {TOKEN}"
        assert headers["accept-encoding"] == "identity"
        assert headers["content-type"] == "application/json"
        assert headers["user-agent"] == "tandem-router"
        assert headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("body", [TEXT, TEXT | {"stream": True}])
async def test_both_legs_see_a_valid_trace_context_as_the_client_sent_it(
    cluster: Cluster, seen: Seen, body: dict[str, Any]
) -> None:
    assert (await cluster.http.post("/v1/completions", json=body, headers=OF_A_CLIENT | OF_A_TRACE)).status_code == 200
    assert len(seen) == 2
    for _, headers in seen:
        assert headers.keys() == SEEN_BY_WORKERS | OF_A_TRACE.keys()
        assert OF_A_TRACE.items() <= headers.items()


@pytest.mark.parametrize(("body", "length"), [(TEXT, "content-length"), (TEXT | {"stream": True}, "transfer-encoding")])
async def test_a_client_sees_the_allowed_headers_of_a_worker_and_the_routers_own(
    cluster: Cluster, body: dict[str, Any], length: str
) -> None:
    answer = await cluster.http.post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert answer.headers.keys() == {"date", "content-type", "cache-control", "x-request-id", length}
    assert answer.headers["x-request-id"] != "theirs"


# 499 is a number without a name.
@pytest.mark.parametrize("status", [400, 404, 422, 429, 499])
async def test_a_workers_refusal_comes_with_the_allowed_headers_too(cluster: Cluster, status: int) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.decode.faults.append(status)
    answer = await cluster.http.post("/v1/completions", json=TEXT)
    assert answer.status_code == status
    assert answer.headers.keys() == {"date", "content-type", "cache-control", "x-request-id", "content-length"}


async def test_an_error_of_the_router_names_no_worker_in_its_headers(cluster: Cluster) -> None:
    for decode in cluster.decodes:
        decode.faults.append(500)
    answer = await cluster.http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == UpstreamError.status
    assert answer.headers.keys() == {"date", "content-type", "x-request-id", "content-length"}


async def test_a_release_carries_no_header_of_the_client(cluster: Cluster, seen: Seen) -> None:
    for decode in cluster.decodes:
        decode.faults.append(400)
    await cluster.http.post("/v1/completions", json=TEXT, headers=OF_A_CLIENT | OF_A_TRACE)
    await cluster.check_nothing_left()
    [headers] = [headers for path, headers in seen if path == "/tandem/release"]
    assert headers.keys() == SEEN_BY_WORKERS - {"x-request-id"}
    assert headers["authorization"] == f"Bearer {TOKEN}"
