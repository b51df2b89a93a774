"""Without prefill there is an error, or decode computes prompts itself: as configured, counted, and never silent."""

import json
from typing import Any

import pytest

from tests.integration.router.conftest import TEXT, Cluster
from tests.integration.router.serving import eventually, unused_url
from tests.integration.router.test_failures import check_error, keep_one_pair, post
from wire.worker import WorkerState

PATH = 'tandem_router_path_total{path="decode_only",reason="%s"}'


async def test_by_default_prefill_that_fails_is_an_error_and_decode_hears_nothing(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.prefill.faults.extend([500, 500])
    check_error(await post(cluster), 502)
    assert cluster.decode.bodies == []
    assert await cluster.metric(PATH % "prefill_failed") == 0


async def test_by_default_a_router_with_decode_alone_serves_nobody_and_is_not_ready(cluster: Cluster) -> None:
    """Cases 21 and 22."""
    await cluster.keep_only(cluster.decode)
    check_error(await post(cluster), 503)
    assert (await cluster.http.get("/ready")).status_code == 503
    assert await cluster.metric(PATH % "no_prefill") == 0
    await cluster.beat(cluster.prefill)
    await cluster.beat(cluster.decode)
    assert (await cluster.http.get("/ready")).status_code == 200
    assert (await post(cluster)).status_code == 200


async def test_both_reasons_are_shown_before_their_first_request(cluster: Cluster) -> None:
    text = (await cluster.http.get("/metrics")).text
    assert PATH % "no_prefill" + " 0.0" in text
    assert PATH % "prefill_failed" + " 0.0" in text


class TestDecodeOnly:
    """Where that is allowed, decode does it all."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"no_prefill": "decode_only"}

    @pytest.mark.parametrize("body", [TEXT, TEXT | {"stream": True}], ids=["whole", "stream"])
    async def test_without_prefill_decode_gets_the_clients_own_request(
        self, cluster: Cluster, body: dict[str, Any]
    ) -> None:
        """Case 21."""
        await cluster.keep_only(cluster.decode)
        assert (await post(cluster, body)).status_code == 200
        assert [json.loads(raw) for raw in cluster.decode.bodies] == [body]
        assert await cluster.metric(PATH % "no_prefill") == 1
        assert await cluster.metric('tandem_router_path_total{path="prefill_decode",reason="handoff"}') == 0
        counted = 'tandem_router_requests_total{code="200",endpoint="completions",model="nano",path="decode_only"}'
        assert await cluster.metric(counted) == 1

    async def test_with_prefill_it_is_used(self, cluster: Cluster) -> None:
        assert (await post(cluster)).status_code == 200
        assert len(cluster.granted) == 1
        assert await cluster.metric(PATH % "no_prefill") == 0

    async def test_the_change_is_logged_once_each_way(self, cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "router.fallback")
        for _ in range(2):
            for prefill in cluster.prefills:
                await cluster.beat(prefill, state=WorkerState.DRAINING)
            for _ in range(3):
                assert (await post(cluster)).status_code == 200
            await cluster.beat(cluster.prefill)
            assert (await post(cluster)).status_code == 200
        levels = [record.levelname for record in caplog.records if record.name == "router.fallback"]
        assert levels == ["WARNING", "INFO", "WARNING", "INFO"]

    async def test_a_prefill_that_turns_out_to_be_gone_is_counted_as_that(self, cluster: Cluster) -> None:
        await keep_one_pair(cluster)
        await cluster.beat(cluster.prefill, url=unused_url())
        assert (await post(cluster)).content == cluster.decode.whole
        assert await cluster.metric(PATH % "no_prefill") == 1
        assert await cluster.metric('tandem_router_path_total{path="prefill_decode",reason="handoff"}') == 1
        assert await cluster.metric('tandem_router_tokens_in_flight{role="prefill"}') == 0

    @pytest.mark.parametrize("fault", [500, "break", "no_handoff"])
    async def test_a_prefill_that_fails_for_good_is_made_up_for(self, cluster: Cluster, fault: Any) -> None:
        await keep_one_pair(cluster)
        cluster.prefill.faults.extend([fault, fault])
        assert (await post(cluster)).content == cluster.decode.whole
        assert [json.loads(raw) for raw in cluster.decode.bodies] == [TEXT]
        assert await cluster.metric(PATH % "prefill_failed") == 1
        await eventually(lambda: cluster.num_leases == 0)

    async def test_a_failed_prefill_is_tried_once_more_before_that(self, cluster: Cluster) -> None:
        cluster.prefill.faults.append(500)
        assert (await post(cluster)).status_code == 200
        assert len(cluster.granted) == 1
        assert await cluster.metric(PATH % "prefill_failed") == 0

    async def test_a_prefills_refusal_is_still_the_clients_error(self, cluster: Cluster) -> None:
        cluster.prefill.faults.append(400)
        check_error(await post(cluster), 400)
        assert cluster.decode.bodies == []

    async def test_a_decode_that_fails_is_still_an_error(self, cluster: Cluster) -> None:
        await keep_one_pair(cluster)
        cluster.decode.faults.append(500)
        check_error(await post(cluster), 502)
        assert await cluster.metric(PATH % "prefill_failed") == 0

    async def test_it_is_ready_with_decode_alone_and_says_what_is_missing(self, cluster: Cluster) -> None:
        await cluster.keep_only(cluster.decode)
        answer = await cluster.http.get("/ready")
        assert (answer.status_code, answer.json()) == (200, {"ready": True, "missing": ["prefill"]})
        await cluster.keep_only()
        assert (await cluster.http.get("/ready")).status_code == 503


class TestRetryBudget:
    """Second attempts are not unlimited."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"retry_ratio": 0}

    async def test_when_the_budget_is_used_up_a_failed_leg_is_not_tried_again(self, cluster: Cluster) -> None:
        while cluster.parts.lifecycle.retries.take():
            pass
        cluster.prefill.faults.append(500)
        check_error(await post(cluster), 502)
        assert await cluster.metric('tandem_router_retries_refused_total{leg="prefill"}') == 1
        assert await cluster.metric('tandem_router_retries_refused_total{leg="decode"}') == 0
        assert await cluster.metric('tandem_router_retries_total{leg="prefill"}') == 0
