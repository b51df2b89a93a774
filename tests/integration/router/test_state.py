"""What the router says of itself and its workers, and to whom."""

from typing import Any

import httpx
import pytest

from router.app import build_parts, create_app
from router.config import RouterConfig
from tests.integration.router.api_answers import MODEL
from tests.integration.router.conftest import CHAT, TEXT, Cluster, cluster_headers
from tests.integration.router.fake_workers import FakeDecode, FakePrefill
from tests.integration.router.serving import eventually, served
from wire.worker import WorkerState


async def test_ready_means_a_usable_pair(cluster: Cluster) -> None:
    """Case 22."""
    assert (await cluster.http.get("/ready")).status_code == 200
    await cluster.keep_only(cluster.decode)
    answer = await cluster.http.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "missing": ["prefill"]})
    await cluster.beat(cluster.prefill, state=WorkerState.STARTING)
    assert (await cluster.http.get("/ready")).status_code == 503
    await cluster.beat(cluster.prefill)
    assert (await cluster.http.get("/ready")).status_code == 200


async def test_alive_does_not_need_workers(cluster: Cluster) -> None:
    await cluster.keep_only()
    assert (await cluster.http.get("/health")).status_code == 200


async def test_models_are_those_of_ready_workers(cluster: Cluster) -> None:
    [card] = (await cluster.http.get("/v1/models")).json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == (MODEL, "model", 8192)
    await cluster.keep_only()
    assert (await cluster.http.get("/v1/models")).json()["data"] == []


async def test_workers_are_listed_with_registration_and_status(cluster: Cluster) -> None:
    listed = (await cluster.http.get("/internal/workers", headers=cluster_headers())).json()["workers"]
    assert [worker["worker_id"] for worker in listed] == ["prefill-0", "prefill-1", "decode-0", "decode-1"]
    assert listed[0]["registration"]["url"] == cluster.urls["prefill-0"]
    assert listed[0]["status"]["state"] == "ready"


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "Basic cluster-token", "cluster-token"])
async def test_control_routes_need_the_clusters_token(cluster: Cluster, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    for request in [
        cluster.http.get("/internal/workers", headers=headers),
        cluster.http.post("/internal/workers", headers=headers, json={}),
        cluster.http.delete("/internal/workers/decode-0", headers=headers),
    ]:
        answer = await request
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
    assert len(cluster.parts.registry.workers()) == 4


async def test_a_malformed_heartbeat_is_refused_by_field(cluster: Cluster) -> None:
    body = {"registration": {"worker_id": "../x"}, "status": {"state": "ready"}}
    answer = await cluster.http.post("/internal/workers", json=body, headers=cluster_headers())
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "registration.worker_id"


async def test_moved_bytes_are_shown_for_each_worker_and_for_each_request(cluster: Cluster) -> None:
    await cluster.beat(cluster.decode, kv_handoffs_total=3, kv_blocks_total=9, kv_bytes_total=9000)
    await cluster.beat(cluster.decodes[1], kv_handoffs_total=1, kv_blocks_total=1, kv_bytes_total=1000)
    await cluster.beat(cluster.prefill, num_leases=2)
    labels = '{role="decode",worker="decode-0"}'
    assert await cluster.metric(f"tandem_router_worker_kv_bytes_total{labels}") == 9000
    assert await cluster.metric(f"tandem_router_worker_kv_handoffs_total{labels}") == 3
    assert await cluster.metric(f"tandem_router_worker_kv_blocks_total{labels}") == 9
    assert await cluster.metric('tandem_router_worker_leases{role="prefill",worker="prefill-0"}') == 2
    assert await cluster.metric("tandem_router_kv_bytes_per_handoff") == 2500
    assert await cluster.metric('tandem_router_workers{role="decode",state="ready"}') == 2


async def test_metrics_hold_no_sample_twice(cluster: Cluster) -> None:
    await cluster.http.post("/v1/completions", json=TEXT)
    lines = [line for line in (await cluster.http.get("/metrics")).text.splitlines() if not line.startswith("#")]
    samples = [line.rsplit(" ", 1)[0] for line in lines]
    assert len(samples) == len(set(samples))


class TestApiKeys:
    """With keys configured, clients need one."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"api_keys": ["key-a", "key-b"]}

    @pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer key-", "Bearer key-aa", "key-a"])
    async def test_without_a_right_key_a_client_is_refused(self, cluster: Cluster, header: str | None) -> None:
        headers = {} if header is None else {"authorization": header}
        for request in [
            cluster.http.post("/v1/chat/completions", json=CHAT, headers=headers),
            cluster.http.post("/v1/completions", json=TEXT, headers=headers),
            cluster.http.get("/v1/models", headers=headers),
        ]:
            answer = await request
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert cluster.prefill.bodies == []

    @pytest.mark.parametrize("key", ["key-a", "key-b"])
    async def test_with_any_of_them_it_is_served(self, cluster: Cluster, key: str) -> None:
        headers = {"authorization": f"Bearer {key}"}
        assert (await cluster.http.post("/v1/completions", json=TEXT, headers=headers)).status_code == 200


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 200), ("0.0.0.0", 401)])
async def test_without_a_token_control_is_for_loopback_only(host: str, status: int) -> None:
    app = create_app(build_parts(RouterConfig(host=host)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as http:
        assert (await http.get("/internal/workers")).status_code == status


async def test_static_workers_serve_while_their_health_is_good() -> None:
    prefill = FakePrefill("prefill-0")
    decode = FakeDecode("decode-0", prefills={"prefill-0": prefill})
    async with served(prefill.app()) as prefill_url, served(decode.app()) as decode_url:
        config = RouterConfig(prefill=(prefill_url,), decode=(decode_url,), health_interval_s=0.05)
        parts = build_parts(config)
        async with served(create_app(parts)) as url, httpx.AsyncClient(base_url=url) as http:
            await eventually(lambda: not parts.registry.pools().missing_roles())
            assert (await http.post("/v1/completions", json=TEXT)).content == decode.whole
            assert (await http.post("/v1/completions", json=TEXT | {"model": "other"})).status_code == 404
            decode.is_healthy = False
            await eventually(lambda: parts.registry.pools().missing_roles())
            assert (await http.get("/ready")).json()["missing"] == ["decode"]
            decode.is_healthy = True
            await eventually(lambda: not parts.registry.pools().missing_roles())
    assert prefill.leases == {}
