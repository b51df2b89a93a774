"""Whatever a worker does, the client gets an answer or an error, and every lease goes back."""

import json
from typing import Any

import httpx
import pytest

from router.body import KV_TRANSFER_PARAMS
from tests.integration.router.conftest import BOTH_APIS, CHAT, TEXT, Cluster
from tests.integration.router.serving import eventually, unused_url
from wire.worker import WorkerState

STREAM = TEXT | {"stream": True}


def check_error(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


async def post(cluster: Cluster, body: dict[str, Any] = TEXT) -> httpx.Response:
    return await cluster.http.post("/v1/completions", json=body)


async def keep_one_pair(cluster: Cluster) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)


# --- prefill ---


@BOTH_APIS
@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_a_prefill_4xx_is_the_clients_own_and_decode_hears_nothing(
    cluster: Cluster, path: str, body: dict[str, Any], status: int
) -> None:
    cluster.prefill.faults.append(status)
    answer = await cluster.http.post(path, json=body)
    error = check_error(answer, status)
    assert error["message"] == f"prefill-0 says {status}"
    assert cluster.decode.bodies == cluster.decodes[1].bodies == []
    assert cluster.released == []


@pytest.mark.parametrize("fault", [500, 502, 503, "break", "break_granted"])
async def test_a_failed_prefill_is_tried_once_more_elsewhere_with_a_fresh_handoff(cluster: Cluster, fault: Any) -> None:
    cluster.prefill.faults.append(fault)
    answer = await post(cluster)
    assert answer.content == cluster.decode.whole
    [first], [second] = cluster.prefill.requests, cluster.prefills[1].requests
    assert first[KV_TRANSFER_PARAMS]["handoff_id"] != second[KV_TRANSFER_PARAMS]["handoff_id"]
    await eventually(lambda: first[KV_TRANSFER_PARAMS]["handoff_id"] in cluster.released)
    assert await cluster.metric('tandem_router_retries_total{leg="prefill"}') == 1


async def test_a_failed_prefill_that_is_alone_is_tried_once_more_itself(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.prefill.faults.append(500)
    assert (await post(cluster)).status_code == 200
    assert len(cluster.prefill.bodies) == 2


async def test_a_prefill_that_fails_twice_is_a_502_without_its_words(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.prefill.faults.extend([500, 500])
    error = check_error(await post(cluster), 502)
    assert "says" not in error["message"]
    assert cluster.decode.bodies == []


async def test_an_unreachable_prefill_is_skipped_until_it_is_heard_again(cluster: Cluster) -> None:
    await cluster.beat(cluster.prefill, url=unused_url())
    for _ in range(4):
        assert (await post(cluster)).status_code == 200
    assert await cluster.metric('tandem_router_retries_total{leg="prefill"}') == 1
    assert await cluster.metric('tandem_router_workers{role="prefill",state="suspect"}') == 1
    await cluster.beat(cluster.prefill)
    assert await cluster.metric('tandem_router_workers{role="prefill",state="suspect"}') == 0
    for _ in range(2):
        await post(cluster)
    assert cluster.prefill.bodies
    assert cluster.released == []


async def test_an_unreachable_prefill_that_is_alone_is_a_5xx(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    await cluster.beat(cluster.prefill, url=unused_url())
    check_error(await post(cluster), 503)
    assert cluster.decode.bodies == []


@pytest.mark.parametrize(
    "fault",
    [
        "no_handoff",
        "empty",
        {"handoff_id": "f" * 32},
        {"num_readers": 2},
        {"wire_version": 99},
        {"wire_version": [2]},
        {"remote_block_ids": []},
        {"remote_block_ids": "1"},
        # What else a handoff says is signed, and decode checks it.
    ],
    ids=str,
)
async def test_an_answer_without_the_right_handoff_is_a_502_and_never_a_second_prefill(
    cluster: Cluster, fault: Any
) -> None:
    cluster.prefill.faults.append(fault)
    check_error(await post(cluster), 502)
    assert cluster.decode.bodies == cluster.decodes[1].bodies == []
    await cluster.check_nothing_left()
    assert await cluster.metric('tandem_router_releases_total{reason="prefill_failed"}') == 1


async def test_a_worker_that_refuses_the_clusters_token_is_a_502(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.prefill.token = "another"
    check_error(await post(cluster), 502)


# --- decode ---


@pytest.mark.parametrize("status", [400, 422])
async def test_a_decode_4xx_is_passed_on_and_the_lease_released(cluster: Cluster, status: int) -> None:
    """Case 14."""
    cluster.decode.faults.append(status)
    assert check_error(await post(cluster), status)["message"] == f"decode-0 says {status}"
    await eventually(lambda: cluster.released == cluster.granted)
    assert cluster.num_leases == 0
    assert await cluster.metric('tandem_router_releases_total{reason="decode_refused"}') == 1


@pytest.mark.parametrize("body", [TEXT, STREAM])
async def test_a_decode_5xx_is_a_502_and_the_lease_released(cluster: Cluster, body: dict[str, Any]) -> None:
    cluster.decode.faults.append(500)
    error = check_error(await post(cluster, body), 502)
    assert "says" not in error["message"]
    await eventually(lambda: cluster.released == cluster.granted)
    assert cluster.decodes[1].bodies == []


@pytest.mark.parametrize("body", [TEXT, STREAM])
@pytest.mark.parametrize("fault", ["break", 503])
async def test_a_decode_that_is_gone_before_its_first_byte_is_tried_once_more_with_a_fresh_handoff(
    cluster: Cluster, body: dict[str, Any], fault: Any
) -> None:
    """Case 20."""
    cluster.decode.faults.append(fault)
    assert (await post(cluster, body)).status_code == 200
    first, second = cluster.granted
    assert first != second
    assert cluster.decodes[1].requests[0][KV_TRANSFER_PARAMS]["handoff_id"] == second
    await eventually(lambda: cluster.released == [first])
    assert sum(decode.num_started for decode in cluster.decodes) == 1
    assert await cluster.metric('tandem_router_retries_total{leg="decode"}') == 1


async def test_an_unreachable_decode_is_replaced_and_the_lease_released(cluster: Cluster) -> None:
    await cluster.beat(cluster.decode, url=unused_url())
    assert (await post(cluster)).status_code == 200
    await eventually(lambda: len(cluster.released) == 1)


@pytest.mark.parametrize("body", [TEXT, STREAM])
async def test_a_decode_that_stays_away_is_a_5xx_with_a_body(cluster: Cluster, body: dict[str, Any]) -> None:
    await keep_one_pair(cluster)
    await cluster.beat(cluster.decode, url=unused_url())
    check_error(await post(cluster, body), 503)
    await eventually(lambda: cluster.released == cluster.granted)


@pytest.mark.parametrize("fault", ["empty", "break_midway"])
async def test_a_whole_answer_is_whole_or_an_error(cluster: Cluster, fault: str) -> None:
    """Case 19."""
    for decode in cluster.decodes:
        decode.faults.append(fault)
    check_error(await post(cluster), 502)


@pytest.mark.parametrize("fault", ["break_midway", "break_in_event", "no_done"])
async def test_a_stream_that_dies_ends_with_an_error_event_and_no_done(cluster: Cluster, fault: str) -> None:
    """Case 19."""
    cluster.decode.faults.append(fault)
    answer = await cluster.http.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert answer.status_code == 200
    events = answer.content.split(b"\n\n")
    assert events.pop() == b""
    assert all(event.startswith(b"data: {") for event in events)
    assert json.loads(events[-1].removeprefix(b"data: "))["error"]["type"] == "upstream_error"
    assert events[0] + b"\n\n" == cluster.decode.pieces[0]
    assert b"[DONE]" not in answer.content
    await eventually(lambda: cluster.released == cluster.granted)
    assert await cluster.metric("tandem_router_stream_failures_total") == 1
    assert await cluster.metric("tandem_router_e2e_seconds_count") == 0


async def test_a_prompt_that_is_too_long_is_refused_before_any_header_also_of_a_stream(cluster: Cluster) -> None:
    """Case 26."""
    cluster.prefill.faults.append(400)
    answer = await post(cluster, STREAM)
    assert check_error(answer, 400)["message"] == "prefill-0 says 400"
    assert answer.headers["content-type"] == "application/json"


DEAD_ENGINE = b'data: {"error": {"message": "EngineCore: secret", "code": 500}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("cut", ["one piece", "with the text", "each event"])
async def test_an_engine_that_dies_says_so_once_and_is_not_done(cluster: Cluster, cut: str) -> None:
    """vLLM tells of its engine's end in an event of its own, and then that the stream is done."""
    text = cluster.decode.pieces[0]
    pieces = {
        "one piece": [text, DEAD_ENGINE + DONE],
        "with the text": [text + DEAD_ENGINE + DONE],
        "each event": [text, DEAD_ENGINE, DONE],
    }
    cluster.decode.faults.append({"pieces": pieces[cut]})
    answer = await cluster.http.post("/v1/chat/completions", json=CHAT | {"stream": True})
    events = answer.content.split(b"\n\n")
    assert events[0] + b"\n\n" == text
    assert json.loads(events[1].removeprefix(b"data: "))["error"]["type"] == "upstream_error"
    assert events[2:] == [b""]
    assert b"secret" not in answer.content
    await eventually(lambda: cluster.released == cluster.granted)
    assert await cluster.metric("tandem_router_stream_failures_total") == 1


async def test_a_text_that_looks_like_an_error_is_text(cluster: Cluster) -> None:
    pieces = [b'data: {"choices":[{"text":"data: {\\"error\\": 1}\\n\\nevent: error"}]}\n\n', DONE]
    cluster.decode.faults.append({"pieces": pieces})
    answer = await cluster.http.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert answer.content == b"".join(pieces)


# --- releases ---


async def test_a_release_is_tried_again_until_prefill_takes_it(cluster: Cluster) -> None:
    cluster.decode.faults.append(400)
    cluster.prefill.release_statuses.extend([500, 503])
    await post(cluster)
    await eventually(lambda: cluster.released == cluster.granted)
    assert await cluster.metric("tandem_router_release_failures_total") == 0


# --- no worker ---


async def test_no_worker_at_all_is_a_503(cluster: Cluster) -> None:
    await cluster.keep_only()
    assert check_error(await post(cluster), 503)["code"] == "no_worker"


async def test_no_ready_decode_is_a_503_and_prefill_is_not_begun(cluster: Cluster) -> None:
    for decode in cluster.decodes:
        await cluster.beat(decode, state=WorkerState.DRAINING)
    check_error(await post(cluster), 503)
    assert cluster.prefill.bodies == cluster.prefills[1].bodies == []


async def test_no_ready_prefill_is_a_503_and_decode_does_not_silently_do_it_all(cluster: Cluster) -> None:
    """Case 21."""
    for prefill in cluster.prefills:
        await cluster.beat(prefill, state=WorkerState.STARTING)
    check_error(await post(cluster), 503)
    assert cluster.decode.bodies == cluster.decodes[1].bodies == []


class TestTimeouts:
    """Silence is bounded on both legs."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"prefill_timeout_s": 0.2, "decode_idle_timeout_s": 0.2}

    async def test_a_silent_prefill_is_a_504_and_is_let_go(self, cluster: Cluster) -> None:
        cluster.prefill.faults.append("hang")
        check_error(await post(cluster), 504)
        await eventually(lambda: cluster.prefill.num_aborted == 1)

    async def test_a_silent_decode_is_a_504_and_the_lease_released(self, cluster: Cluster) -> None:
        cluster.decode.faults.append("hang")
        check_error(await post(cluster), 504)
        await eventually(lambda: cluster.released == cluster.granted)
        assert cluster.decode.num_aborted == 1

    async def test_a_stream_that_falls_silent_ends_with_an_error_event(self, cluster: Cluster) -> None:
        cluster.decode.faults.append("hang_midway")
        answer = await post(cluster, STREAM)
        assert json.loads(answer.content.split(b"data: ")[-1])["error"]["type"] == "timeout_error"
