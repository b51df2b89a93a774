"""A stream with nothing to say yet says that it lives, and what goes wrong afterwards is said inside it."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from router.body import KV_TRANSFER_PARAMS
from tests.integration.router.conftest import CHAT, TEXT, Cluster
from tests.integration.router.serving import eventually
from tests.integration.router.test_apis import EVERY_API
from tests.integration.router.test_disconnects import LeavingClient, wait_for_disconnect
from tests.integration.router.test_failures import keep_one_pair

PING = b": ping\n\n"
STREAM = TEXT | {"stream": True}


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"ping_interval_s": 0.05}


class Reading:
    """A stream, read up to its first two pings; ``rest`` reads on."""

    def __init__(self, cluster: Cluster, body: dict[str, Any] = STREAM, path: str = "/v1/completions") -> None:
        self._context = cluster.http.stream("POST", path, json=body)

    async def start(self) -> "Reading":
        self.answer = await self._context.__aenter__()
        self._pieces = self.answer.aiter_raw()
        self.received = b""
        while self.received.count(PING) < 2:
            self.received += await anext(self._pieces)
        return self

    async def rest(self) -> bytes:
        """All but the pings."""
        self.received += b"".join([piece async for piece in self._pieces])
        await self._context.__aexit__(None, None, None)
        return self.received.replace(PING, b"")


def error_of(stream: bytes) -> dict[str, Any]:
    """The error of a stream that holds nothing else."""
    assert stream.startswith(b"data: {")
    assert stream.endswith(b"}\n\n")
    assert stream.count(b"\n\n") == 1
    error: dict[str, Any] = json.loads(stream.removeprefix(b"data: "))["error"]
    return error


@EVERY_API
async def test_a_long_prefill_is_bridged_by_pings(cluster: Cluster, path: str, body: dict[str, Any]) -> None:
    """Case 25."""
    await keep_one_pair(cluster)
    expected = (await cluster.http.post(path, json=body | {"stream": True})).content
    cluster.prefill.faults.append("hold")
    reading = await Reading(cluster, body | {"stream": True}, path).start()
    assert reading.answer.status_code == 200
    assert reading.answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "x-request-id" in reading.answer.headers
    cluster.prefill.gate.set()
    assert await reading.rest() == expected
    assert await cluster.metric("tandem_router_pings_total") >= 2


@EVERY_API
async def test_after_pings_an_error_has_the_apis_own_shape(cluster: Cluster, path: str, body: dict[str, Any]) -> None:
    await keep_one_pair(cluster)
    for fault, message in ((400, "prefill-0 says 400"), ("no_handoff", "without kv_transfer_params")):
        cluster.prefill.gate.clear()
        cluster.prefill.faults.append(("hold", fault))
        reading = await Reading(cluster, body | {"stream": True}, path).start()
        cluster.prefill.gate.set()
        event = await reading.rest()
        is_named = path in ("/v1/responses", "/v1/messages")
        assert event.startswith(b"event: error\ndata: {" if is_named else b'data: {"error"')
        assert event.count(b"\n\n") == 1
        assert message in json.loads(event.partition(b"data: ")[2])["error"]["message"]


async def test_a_client_that_gives_up_on_silence_sees_none(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.prefill.faults.append("hold")
    asyncio.get_running_loop().call_later(1.5, cluster.prefill.gate.set)
    patient = httpx.Timeout(10, read=0.75)
    answer = await cluster.http.post("/v1/completions", json=STREAM, timeout=patient)
    assert answer.content.replace(PING, b"") == b"".join(cluster.decode.pieces)


async def test_a_decode_that_takes_its_time_is_bridged_too(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.decode.faults.append("hold")
    reading = await Reading(cluster).start()
    cluster.decode.gate.set()
    assert await reading.rest() == b"".join(cluster.decode.pieces)


async def test_once_the_content_has_begun_there_are_no_pings(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.decode.faults.append("hold_midway")
    asyncio.get_running_loop().call_later(0.3, cluster.decode.gate.set)
    answer = await cluster.http.post("/v1/completions", json=STREAM)
    assert answer.content == b"".join(cluster.decode.pieces)


async def test_an_answer_that_is_no_stream_is_not_touched(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.prefill.faults.append("hold")
    asyncio.get_running_loop().call_later(0.3, cluster.prefill.gate.set)
    answer = await cluster.http.post("/v1/completions", json=TEXT)
    assert answer.content == cluster.decode.whole
    assert await cluster.metric("tandem_router_pings_total") == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_after_pings_a_failed_leg_is_still_tried_once_more_with_a_fresh_handoff(
    cluster: Cluster, role: str
) -> None:
    """Case 20."""
    worker = cluster.prefill if role == "prefill" else cluster.decode
    await cluster.keep_only(cluster.prefill, cluster.decode)
    worker.faults.append(("hold", "break"))
    reading = await Reading(cluster).start()
    worker.gate.set()
    assert await reading.rest() == b"".join(cluster.decode.pieces)
    ids = [sent[KV_TRANSFER_PARAMS]["handoff_id"] for sent in cluster.prefill.requests]
    assert len(set(ids)) == 2
    assert cluster.decode.num_started == 1
    assert await cluster.metric(f'tandem_router_retries_total{{leg="{role}"}}') == 1


@pytest.mark.parametrize(
    ("role", "fault", "kind"), [("prefill", 500, "upstream_error"), ("decode", 500, "upstream_error")]
)
async def test_after_pings_a_failure_is_the_streams_only_event(
    cluster: Cluster, role: str, fault: Any, kind: str
) -> None:
    """Case 19."""
    await keep_one_pair(cluster)
    worker = cluster.prefill if role == "prefill" else cluster.decode
    worker.faults.extend([("hold", fault), fault])
    reading = await Reading(cluster).start()
    worker.gate.set()
    assert error_of(await reading.rest())["type"] == kind
    assert await cluster.metric("tandem_router_stream_failures_total") == 1


async def test_after_pings_a_workers_refusal_reaches_the_client_in_its_words(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.prefill.faults.append(("hold", 400))
    reading = await Reading(cluster).start()
    cluster.prefill.gate.set()
    assert error_of(await reading.rest())["message"] == "prefill-0 says 400"


async def test_a_client_that_leaves_after_pings_takes_its_leg_with_it(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.prefill.faults.append("hang")
    client = LeavingClient(cluster)
    await client.send(STREAM)
    await client.reader.readuntil(PING)
    await client.leave()
    await eventually(lambda: cluster.prefill.num_aborted == 1)
    await wait_for_disconnect(cluster, "prefill")


async def test_the_openai_client_reads_over_pings(cluster: Cluster) -> None:
    await keep_one_pair(cluster)
    cluster.prefill.faults.append("hold")
    async with AsyncOpenAI(base_url=f"{cluster.http.base_url}/v1", api_key="k", max_retries=0) as ai:
        # Comes back with the head, which is the first ping's.
        stream = await ai.chat.completions.create(**CHAT, stream=True)
        cluster.prefill.gate.set()
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert text == "Héllo"
    assert await cluster.metric("tandem_router_pings_total") >= 1


class TestInTheQueue:
    """Waiting in line is waiting too."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"ping_interval_s": 0.05, "prefill_tokens_per_worker": 10, "queue_timeout_s": 0.5}

    async def test_a_wait_in_line_is_bridged_and_its_end_said_inside_the_stream(self, cluster: Cluster) -> None:
        await keep_one_pair(cluster)
        cluster.prefill.faults.append("hold")
        first = asyncio.create_task(cluster.http.post("/v1/completions", json=TEXT))
        await eventually(lambda: cluster.prefill.bodies)
        reading = await Reading(cluster).start()
        assert error_of(await reading.rest())["code"] == "queue_timeout"
        cluster.prefill.gate.set()
        assert (await first).status_code == 200


class TestSwitchedOff:
    """An interval of 0 means none."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"ping_interval_s": 0}

    async def test_no_ping_is_sent(self, cluster: Cluster) -> None:
        await keep_one_pair(cluster)
        cluster.prefill.faults.append("hold")
        asyncio.get_running_loop().call_later(0.3, cluster.prefill.gate.set)
        answer = await cluster.http.post("/v1/completions", json=STREAM)
        assert answer.content == b"".join(cluster.decode.pieces)
