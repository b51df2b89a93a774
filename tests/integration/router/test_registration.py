"""Workers that differ are told so before and when they register, and decode hears from whom it may read."""

from typing import Any

import httpx
import pytest

from router.body import KV_TRANSFER_PARAMS
from tests.integration.router.api_answers import MODEL
from tests.integration.router.conftest import TEXT, Cluster, cluster_headers
from wire.worker import KVPeer, WorkerState

SHORT = {"fingerprint": {"max_model_len": "4096"}}
DIFFERENCE = "max_model_len differs: 4096 on decode-9, 8192 on prefill-0 and prefill-1"


async def ask(cluster: Cluster, headers: dict[str, str] | None = None, **replaced: Any) -> httpx.Response:
    body = {"worker_id": "decode-9", "role": "decode", "model": MODEL, "fingerprint": {"max_model_len": "8192"}}
    headers = cluster_headers() if headers is None else headers
    return await cluster.http.post("/internal/workers/check", json=body | replaced, headers=headers)


async def register(cluster: Cluster, **replaced: Any) -> httpx.Response:
    return await cluster.send_beat(cluster.registration(cluster.decode, worker_id="decode-9", **replaced))


async def test_a_worker_that_fits_may_load_its_model(cluster: Cluster) -> None:
    answer = await ask(cluster)
    assert (answer.status_code, answer.content) == (204, b"")
    assert len(cluster.parts.registry.workers()) == 4


@pytest.mark.parametrize("way", [ask, register])
async def test_a_worker_that_fits_nobody_is_refused_with_both_sides_values(cluster: Cluster, way: Any) -> None:
    answer = await way(cluster, **SHORT)
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("worker_mismatch", "conflict_error")
    assert DIFFERENCE in error["message"]
    assert len(cluster.parts.registry.workers()) == 4


@pytest.mark.parametrize("way", [ask, register])
async def test_an_old_version_is_refused_beside_new_workers_and_an_unknown_one_always(
    cluster: Cluster, way: Any
) -> None:
    old = await way(cluster, wire_version=1)
    assert (old.status_code, old.json()["error"]["code"]) == (409, "worker_mismatch")
    assert "wire versions don't pair: 1 on decode-9, 2 on prefill-0 and prefill-1" in old.json()["error"]["message"]
    unknown = await way(cluster, wire_version=99)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "wire_version_mismatch")


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer wrong"}])
async def test_a_check_needs_the_clusters_token(cluster: Cluster, header: dict[str, str]) -> None:
    assert (await ask(cluster, headers=header, **SHORT)).status_code == 401


async def test_a_malformed_check_is_refused_by_field(cluster: Cluster) -> None:
    answer = await ask(cluster, fingerprint={"max_model_len": 8192})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "fingerprint.max_model_len")


async def test_decode_is_answered_with_its_prefill_workers_and_prefill_with_none(cluster: Cluster) -> None:
    peers = tuple(KVPeer(engine_id=prefill.name, host="127.0.0.1", port=5600) for prefill in cluster.prefills)
    assert (await cluster.beat(cluster.decode)).peers == peers
    assert (await cluster.beat(cluster.prefill)).peers == ()
    await cluster.beat(cluster.prefill, state=WorkerState.DRAINING)
    assert (await cluster.beat(cluster.decode)).peers == peers
    await cluster.keep_only(cluster.prefills[1], cluster.decode)
    assert (await cluster.beat(cluster.decode)).peers == peers[1:]


async def test_two_kinds_of_workers_are_never_mixed(cluster: Cluster) -> None:
    await cluster.keep_only()
    kinds = [(cluster.prefill, {}), (cluster.prefills[1], SHORT), (cluster.decode, {}), (cluster.decodes[1], SHORT)]
    for worker, fields in kinds:
        assert (await cluster.send_beat(cluster.registration(worker, **fields))).status_code == 200
    for _ in range(8):
        # The second goes to decode alone, so that the two roles' turns get out of step.
        for body in (TEXT, TEXT | {"prompt": ["a", "b"]}):
            assert (await cluster.http.post("/v1/completions", json=body)).status_code == 200
    for prefill, decode in zip(cluster.prefills, cluster.decodes, strict=True):
        handoffs = [sent[KV_TRANSFER_PARAMS] for sent in decode.requests if KV_TRANSFER_PARAMS in sent]
        assert {handoff["remote_engine_id"] for handoff in handoffs} == {prefill.name}
    await cluster.keep_only(*cluster.prefills, cluster.decode)
    num_before = len(cluster.prefills[1].bodies)
    assert [(await cluster.http.post("/v1/completions", json=TEXT)).status_code for _ in range(4)] == [200] * 4
    assert len(cluster.prefills[1].bodies) == num_before


async def test_a_decode_is_not_used_before_it_has_heard_of_the_new_prefill(cluster: Cluster) -> None:
    await cluster.keep_only(cluster.decode)
    await cluster.beat(cluster.decode)
    await cluster.beat(cluster.prefill)
    assert (await cluster.http.get("/ready")).status_code == 503
    answer = await cluster.http.post("/v1/completions", json=TEXT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker")
    assert cluster.prefill.bodies == []
    await cluster.beat(cluster.decode)
    assert (await cluster.http.get("/ready")).status_code == 200
    assert (await cluster.http.post("/v1/completions", json=TEXT)).status_code == 200
