"""A request that has used up its own time ends, with both legs, and is told so in the way that is still open."""

import json
from typing import Any

import pytest

from tests.integration.router.conftest import CHAT, TEXT, Cluster
from tests.integration.router.serving import eventually
from tests.integration.router.test_failures import check_error, keep_one_pair, post

STREAM = TEXT | {"stream": True}
SHORT = {"x-request-timeout": "0.2"}


@pytest.mark.parametrize("body", [TEXT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_it_ends_the_leg_releases_the_handoff_and_is_a_504(
    cluster: Cluster, role: str, body: dict[str, Any]
) -> None:
    await keep_one_pair(cluster)
    worker = cluster.prefill if role == "prefill" else cluster.decode
    worker.faults.append("hang")
    answer = await cluster.http.post("/v1/completions", json=body, headers=SHORT)
    assert check_error(answer, 504)["code"] == "request_timeout"
    await eventually(lambda: worker.num_aborted == 1 and cluster.released)
    assert await cluster.metric("tandem_router_request_timeouts_total") == 1


async def test_in_a_stream_it_is_the_last_event(cluster: Cluster) -> None:
    cluster.decode.faults.append("hang_midway")
    answer = await cluster.http.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers=SHORT)
    assert answer.status_code == 200
    assert json.loads(answer.content.split(b"data: ")[-1])["error"]["code"] == "request_timeout"
    assert b"[DONE]" not in answer.content
    await eventually(lambda: cluster.decode.num_aborted == 1)
    assert await cluster.metric("tandem_router_stream_failures_total") == 1


async def test_a_request_that_is_done_in_time_is_not_touched(cluster: Cluster) -> None:
    answer = await cluster.http.post("/v1/completions", json=TEXT, headers={"x-request-timeout": "30"})
    assert answer.content == cluster.decode.whole
    assert await cluster.metric("tandem_router_request_timeouts_total") == 0


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan"])
async def test_a_wrong_limit_is_refused_by_name_and_no_worker_hears_of_it(cluster: Cluster, given: str) -> None:
    answer = await cluster.http.post("/v1/completions", json=TEXT, headers={"x-request-timeout": given})
    assert check_error(answer, 400)["param"] == "x-request-timeout"
    assert cluster.prefill.bodies == []


class TestSetting:
    """The operator's limit is for everyone."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"request_timeout_s": 0.2, "prefill_tokens_per_worker": 10}

    async def test_it_holds_without_a_header_and_against_a_longer_one(self, cluster: Cluster) -> None:
        for headers in ({}, {"x-request-timeout": "60"}):
            cluster.prefill.faults.append("hang")
            cluster.prefills[1].faults.append("hang")
            answer = await cluster.http.post("/v1/completions", json=TEXT, headers=headers)
            assert check_error(answer, 504)["code"] == "request_timeout"
            for worker in cluster.prefills:
                worker.faults.clear()

    async def test_it_holds_in_the_queue_too(self, cluster: Cluster) -> None:
        prefill = cluster.parts.lifecycle.admission.prefill
        prefill.room -= 100
        assert check_error(await post(cluster), 504)["code"] == "request_timeout"
        assert (prefill.num_waiting, cluster.prefill.bodies) == (0, [])
        prefill.room += 100
        assert (await post(cluster)).status_code == 200
