"""A handoff that decode does not take, or that prefill does not give, is never the client's fault and never silent."""

from typing import Any

import httpx
import pytest

from router.app import build_parts, create_app
from router.body import KV_TRANSFER_PARAMS
from router.config import RouterConfig
from tests.integration.router.conftest import TEXT, Cluster
from tests.integration.router.fake_workers import FakeDecode, FakePrefill
from tests.integration.router.serving import eventually, served
from tests.integration.router.test_failures import check_error, keep_one_pair, post
from wire.refusal import HTTP_STATUS, Refusal

STREAM = TEXT | {"stream": True}
REFUSED = "tandem_router_handoffs_refused_total"


@pytest.mark.parametrize("body", [TEXT, STREAM])
@pytest.mark.parametrize("reason", [Refusal.MISMATCH, Refusal.UNREGISTERED, Refusal.REPLAYED])
async def test_a_refused_handoff_is_replaced_once_by_a_fresh_one(
    cluster: Cluster, body: dict[str, Any], reason: Refusal
) -> None:
    cluster.decode.faults.append((HTTP_STATUS.get(reason, 400), reason.value))
    assert (await post(cluster, body)).status_code == 200
    first, second = cluster.granted
    assert first != second
    assert cluster.decodes[1].requests[0][KV_TRANSFER_PARAMS]["handoff_id"] == second
    await eventually(lambda: cluster.released == [first])
    assert sum(decode.num_started for decode in cluster.decodes) == 1
    assert await cluster.metric(f'{REFUSED}{{reason="{reason}"}}') == 1
    assert await cluster.metric('tandem_router_retries_total{leg="decode"}') == 1
    assert await cluster.metric('tandem_router_releases_total{reason="handoff_refused"}') == 1


async def test_a_handoff_refused_twice_is_a_502_that_names_the_reason_and_no_more(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.decode.faults.extend([(403, "unregistered")] * 2)
    error = check_error(await post(cluster), 502)
    assert error["message"] == "The decode worker decode-0 refused the handoff: unregistered."
    assert len(set(cluster.granted)) == 2
    await eventually(lambda: sorted(cluster.released) == sorted(cluster.granted))
    assert await cluster.metric(f'{REFUSED}{{reason="unregistered"}}') == 2


@pytest.mark.parametrize("said", ["", "Signature", 'a"b' * 300])
async def test_a_reason_that_is_none_is_counted_as_other_and_not_repeated(cluster: Cluster, said: str) -> None:
    await keep_one_pair(cluster)
    cluster.decode.faults.extend([(400, said)] * 2)
    error = check_error(await post(cluster), 502)
    assert error["message"] == "The decode worker decode-0 refused the handoff: no known reason."
    assert await cluster.metric(f'{REFUSED}{{reason="other"}}') == 2


async def test_every_reason_is_shown_before_its_first_refusal_and_counted_by_itself(cluster: Cluster) -> None:
    text = (await cluster.http.get("/metrics")).text
    for reason in (*Refusal, "other"):
        assert f'{REFUSED}{{reason="{reason}"}} 0.0' in text
    await keep_one_pair(cluster)
    for reason in Refusal:
        cluster.decode.faults.append((HTTP_STATUS.get(reason, 400), reason.value))
        assert (await post(cluster)).status_code == 200
        assert await cluster.metric(f'{REFUSED}{{reason="{reason}"}}') == 1


async def test_a_4xx_without_the_header_stays_the_clients_own(cluster: Cluster) -> None:
    cluster.decode.faults.append(409)
    check_error(await post(cluster), 409)
    assert len(cluster.granted) == 1
    assert await cluster.metric('tandem_router_releases_total{reason="decode_refused"}') == 1


@pytest.mark.parametrize("status", [500, 503])
async def test_the_header_on_a_5xx_changes_nothing(cluster: Cluster, status: int) -> None:
    cluster.decode.faults.append((status, "signature"))
    await post(cluster)
    assert await cluster.metric(f'{REFUSED}{{reason="signature"}}') == 0


async def test_prefill_may_refuse_an_ask_too_and_another_is_asked_afresh(cluster: Cluster) -> None:
    cluster.prefill.faults.append((409, "replayed"))
    assert (await post(cluster)).status_code == 200
    [first], [second] = cluster.prefill.requests, cluster.prefills[1].requests
    assert first[KV_TRANSFER_PARAMS]["handoff_id"] != second[KV_TRANSFER_PARAMS]["handoff_id"]
    assert await cluster.metric(f'{REFUSED}{{reason="replayed"}}') == 1
    await eventually(lambda: cluster.parts.releaser.num_pending == 0)


async def test_a_prefill_answer_without_a_handoff_is_a_502_that_says_so_and_is_counted(cluster: Cluster) -> None:
    cluster.prefill.faults.append("no_handoff")
    error = check_error(await post(cluster), 502)
    assert "without kv_transfer_params" in error["message"]
    assert cluster.decode.bodies == cluster.decodes[1].bodies == []
    assert await cluster.metric("tandem_router_prefill_without_handoff_total") == 1


async def test_static_engines_without_the_connector_never_serve_silently() -> None:
    prefill = FakePrefill("prefill-0")
    decode = FakeDecode("decode-0", prefills={"prefill-0": prefill})
    async with served(prefill.app()) as prefill_url, served(decode.app()) as decode_url:
        parts = build_parts(RouterConfig(prefill=(prefill_url,), decode=(decode_url,), health_interval_s=0.05))
        async with served(create_app(parts)) as url:
            cluster = Cluster(parts, httpx.AsyncClient(base_url=url, timeout=10), [prefill], [decode])
            async with cluster.http:
                await eventually(lambda: not parts.registry.pools().missing_roles())
                for body in (TEXT, STREAM):
                    prefill.faults.append("no_handoff")
                    error = check_error(await post(cluster, body), 502)
                    assert "KV connector" in error["message"]
                assert decode.bodies == []
                assert await cluster.metric("tandem_router_prefill_without_handoff_total") == 2
                await cluster.check_nothing_left()
