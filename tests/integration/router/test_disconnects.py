"""A client that leaves takes its legs and its lease with it, wherever the request is."""

import asyncio
import json
import random
from typing import Any

from tests.integration.router.conftest import TEXT, TOKEN, Cluster
from tests.integration.router.serving import eventually

STREAM = TEXT | {"stream": True}


class LeavingClient:
    """A request whose connection is closed when the test says so."""

    def __init__(self, cluster: Cluster) -> None:
        self._host, self._port = cluster.http.base_url.host, cluster.http.base_url.port

    async def send(self, body: dict[str, Any], *, declared_extra: int = 0) -> None:
        raw = json.dumps(body).encode()
        reader, self._writer = await asyncio.open_connection(self._host, self._port)
        self.reader = reader
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw) + declared_extra}\r\n\r\n"
        self._writer.write(head.encode() + raw)
        await self._writer.drain()

    async def leave(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def test_leaving_during_the_upload_reaches_no_worker(cluster: Cluster) -> None:
    client = LeavingClient(cluster)
    await client.send(TEXT, declared_extra=100)
    await client.leave()
    await wait_for_disconnect(cluster, "admit")
    assert cluster.prefill.bodies == cluster.prefills[1].bodies == []


async def test_leaving_during_prefill_aborts_it_at_once_and_releases(cluster: Cluster) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.prefill.faults.append("hang")
    client = LeavingClient(cluster)
    await client.send(TEXT)
    await eventually(lambda: cluster.prefill.bodies)
    await client.leave()
    await eventually(lambda: cluster.prefill.num_aborted == 1 and cluster.released)
    asked = cluster.prefill.requests[0]["kv_transfer_params"]["handoff_id"]
    assert set(cluster.released) == {asked}
    assert cluster.decode.bodies == []
    await wait_for_disconnect(cluster, "prefill")


async def test_a_lease_that_comes_up_after_its_release_is_released_too(cluster: Cluster) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.prefill.faults.append("hang")
    cluster.prefill.grants_late = True
    client = LeavingClient(cluster)
    await client.send(TEXT)
    await eventually(lambda: cluster.prefill.bodies)
    await client.leave()
    await eventually(lambda: cluster.prefill.leases)
    await eventually(lambda: not cluster.prefill.leases)


async def test_leaving_before_decodes_first_byte_aborts_it_and_releases(cluster: Cluster) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.decode.faults.append("hang")
    client = LeavingClient(cluster)
    await client.send(STREAM)
    await eventually(lambda: cluster.decode.bodies)
    await client.leave()
    await eventually(lambda: cluster.decode.num_aborted == 1 and cluster.released == cluster.granted)
    await wait_for_disconnect(cluster, "decode")
    assert await cluster.metric('tandem_router_releases_total{reason="abandoned"}') == 1


async def test_leaving_during_the_stream_aborts_decode_and_releases(cluster: Cluster) -> None:
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.decode.faults.append("hang_midway")
    client = LeavingClient(cluster)
    await client.send(STREAM)
    await client.reader.readuntil(cluster.decode.pieces[0])
    await client.leave()
    await eventually(lambda: cluster.decode.num_aborted == 1 and cluster.released == cluster.granted)
    await wait_for_disconnect(cluster, "relay")


async def test_ten_long_prefills_that_are_dropped_do_not_hold_up_the_next_request(cluster: Cluster) -> None:
    """Case 12."""
    await cluster.keep_only(cluster.prefill, cluster.decode)
    cluster.prefill.faults.extend(["hang"] * 10)
    clients = [LeavingClient(cluster) for _ in range(10)]
    for client in clients:
        await client.send(TEXT)
    await eventually(lambda: len(cluster.prefill.bodies) == 10)
    for client in clients:
        await client.leave()
    await eventually(lambda: cluster.prefill.num_aborted == 10)
    assert (await cluster.http.post("/v1/completions", json=TEXT)).status_code == 200


async def test_leaving_at_random_moments_leaves_nothing_behind(cluster: Cluster) -> None:
    moments = random.Random(7)
    for _ in range(60):
        for worker in [*cluster.prefills, *cluster.decodes]:
            worker.faults.append(moments.choice([None, "hang", "hang_midway"] if worker in cluster.decodes else [None]))

    async def come_and_go() -> None:
        client = LeavingClient(cluster)
        await client.send(moments.choice([TEXT, STREAM]))
        for _ in range(moments.randrange(40)):
            await asyncio.sleep(0)
        await asyncio.sleep(moments.random() / 20)
        await client.leave()

    for _ in range(5):
        await asyncio.gather(*(come_and_go() for _ in range(20)))
    await cluster.check_nothing_left()
    for worker in [*cluster.prefills, *cluster.decodes]:
        worker.faults.clear()
    answer = await cluster.http.post("/v1/completions", json=TEXT, headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200


async def wait_for_disconnect(cluster: Cluster, stage: str) -> None:
    async def is_counted() -> bool:
        return await cluster.metric(f'tandem_router_disconnects_total{{stage="{stage}"}}') == 1

    for _ in range(200):
        if await is_counted():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"no disconnect was counted at {stage}")
