"""What needs no handoff is answered by one worker, unchanged."""

import asyncio

import pytest

from tests.integration.router.api_answers import MODEL, ONE_WORKER, Json
from tests.integration.router.conftest import Cluster
from tests.integration.router.serving import eventually, unused_url
from tests.integration.router.test_apis import check_error

BODIES: dict[str, Json] = {
    "/v1/embeddings": {"model": MODEL, "input": ["a", "b"]},
    "/tokenize": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    "/detokenize": {"model": MODEL, "tokens": [1, 2, 3]},
    "/v1/messages/count_tokens": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
}
LABELS = {path: path.rpartition("/")[2] for path in BODIES}
EACH = pytest.mark.parametrize("path", BODIES)


@EACH
async def test_a_prefill_worker_answers_the_clients_own_bytes(cluster: Cluster, path: str) -> None:
    raw = b'{ "x":1.0, "model" : "nano", "input":"\\u00e9" }'
    answer = await cluster.http.post(path, content=raw, headers={"x-request-id": "mine-1"})
    assert (answer.status_code, answer.json()) == (200, ONE_WORKER[path])
    assert cluster.prefill.bodies + cluster.prefills[1].bodies == [raw]
    assert cluster.decode.bodies == cluster.decodes[1].bodies == []
    assert cluster.granted == []
    assert cluster.prefill.headers[0]["x-request-id"] == answer.headers["x-request-id"] == "mine-1"
    assert await cluster.metric('tandem_router_path_total{path="one_worker",reason="pass_through"}') == 1
    counted = f'tandem_router_requests_total{{code="200",endpoint="{LABELS[path]}",model="nano",path="one_worker"}}'
    assert await cluster.metric(counted) == 1


@EACH
async def test_without_a_prefill_worker_a_decode_worker_answers(cluster: Cluster, path: str) -> None:
    await cluster.keep_only(cluster.decode)
    assert (await cluster.http.post(path, json=BODIES[path])).json() == ONE_WORKER[path]


@EACH
async def test_errors_have_the_apis_shape(cluster: Cluster, path: str) -> None:
    check_error(path, await cluster.http.post(path, content=b"{"), 400)
    check_error(path, await cluster.http.post(path, json=BODIES[path] | {"model": 1}), 400)
    check_error(path, await cluster.http.post(path, json=BODIES[path] | {"kv_transfer_params": {}}), 400)
    check_error(path, await cluster.http.post(path, json=BODIES[path] | {"model": "gpt-9"}), 404)
    cluster.prefill.faults.append(422)
    assert check_error(path, await cluster.http.post(path, json=BODIES[path]), 422) == "prefill-0 says 422"
    await cluster.keep_only()
    check_error(path, await cluster.http.post(path, json=BODIES[path]), 503)


@pytest.mark.parametrize("fault", ["break", 503])
async def test_a_worker_that_fails_is_replaced_once(cluster: Cluster, fault: str | int) -> None:
    cluster.prefill.faults.append(fault)
    answer = await cluster.http.post("/tokenize", json=BODIES["/tokenize"])
    assert answer.json() == ONE_WORKER["/tokenize"]
    assert [len(prefill.bodies) for prefill in cluster.prefills] == [1, 1]


async def test_two_that_fail_are_a_502(cluster: Cluster) -> None:
    for prefill in cluster.prefills:
        prefill.faults.append("break")
    check_error("/tokenize", await cluster.http.post("/tokenize", json=BODIES["/tokenize"]), 502)


async def test_a_5xx_is_not_tried_again_and_its_words_stay_inside(cluster: Cluster) -> None:
    cluster.prefill.faults.append(500)
    message = check_error("/tokenize", await cluster.http.post("/tokenize", json=BODIES["/tokenize"]), 502)
    assert message == "The prefill worker prefill-0 answered with 500."
    assert cluster.prefills[1].bodies == []


async def test_an_unreachable_worker_is_skipped_until_it_is_heard_again(cluster: Cluster) -> None:
    await cluster.beat(cluster.prefill, url=unused_url())
    for _ in range(3):
        assert (await cluster.http.post("/tokenize", json=BODIES["/tokenize"])).status_code == 200
    assert len(cluster.prefills[1].bodies) == 3
    assert await cluster.metric('tandem_router_workers{role="prefill",state="suspect"}') == 1


async def test_a_client_that_leaves_aborts_the_workers_request(cluster: Cluster) -> None:
    cluster.prefill.faults.append("hang")
    asking = asyncio.create_task(cluster.http.post("/tokenize", json=BODIES["/tokenize"]))
    await eventually(lambda: cluster.prefill.bodies)
    asking.cancel()
    await eventually(lambda: cluster.prefill.num_aborted == 1)
