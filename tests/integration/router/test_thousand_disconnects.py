"""A thousand clients leave, each at a moment of its own, and a second later there is no trace of them."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from router.app import RouterParts, build_parts
from router.config import RouterConfig
from tests.integration.router.api_answers import MODEL
from tests.integration.router.serving import eventually, served, served_router
from tests.integration.router.slow_workers import SlowWorkers

NUM_CLIENTS = 1000
NUM_AT_ONCE = 40
LONGEST_S = 0.15
ABORTED_WITHIN_S = 1.0
# Of kept connections to workers, which close by themselves after 3 s.
IDLE_WITHIN_S = 6.0


async def come_and_go(url: str, number: int, moments: random.Random, left_at: dict[str, float]) -> None:
    parts, request_id = urlsplit(url), f"client-{number}"
    body = json.dumps({"model": MODEL, "prompt": "x" * moments.randrange(1, 3000), "stream": number % 2 == 0}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    sent = head.encode() + body
    if number % 20 == 0:  # some don't get as far as to ask
        sent = sent[: moments.randrange(1, len(sent))]
    writer.write(sent)
    await asyncio.sleep(2 * LONGEST_S * moments.random() ** 2)
    left_at[request_id] = time.monotonic()
    writer.close() if number % 3 else writer.transport.abort()


async def leave_all(url: str, moments: random.Random) -> dict[str, float]:
    """When each client left, by its request id."""
    left_at: dict[str, float] = {}
    gate = asyncio.Semaphore(NUM_AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            await come_and_go(url, number, moments, left_at)

    await asyncio.gather(*map(one, range(NUM_CLIENTS)))
    return left_at


@asynccontextmanager
async def watched_stalls() -> AsyncIterator[list[float]]:
    """Seconds by which the event loop was late, each time that it was to come round."""
    stalls = [0.0]

    async def watch() -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(0.01)
            stalls.append(time.monotonic() - began_s - 0.01)

    watching = asyncio.create_task(watch())
    try:
        yield stalls
    finally:
        watching.cancel()


def is_idle(parts: RouterParts) -> bool:
    workers = parts.registry.workers()
    return (
        parts.active.num == 0
        and all(worker.num_in_flight == worker.tokens_in_flight == 0 for worker in workers)
        and parts.client.num_connections == parts.client.num_idle_connections  # type: ignore[attr-defined]
    )


def check_counts(parts: RouterParts) -> None:
    samples = dict(line.rsplit(" ", 1) for line in parts.metrics.render().decode().splitlines() if line[0] != "#")
    assert float(samples["tandem_router_requests_in_flight"]) == 0
    # It was no empty exercise: clients left at every stage.
    for stage in ("admit", "prefill", "decode", "relay"):
        assert float(samples[f'tandem_router_disconnects_total{{stage="{stage}"}}']) >= 10, stage


async def test_every_leg_is_aborted_within_a_second_and_nothing_leaks() -> None:
    moments = random.Random(11)
    slow = SlowWorkers(moments, LONGEST_S)
    async with served(slow.prefill) as prefill_url, served(slow.decode) as decode_url:
        config = RouterConfig(prefill=(prefill_url,), decode=(decode_url,), health_interval_s=3600)
        parts = build_parts(config)
        async with served_router(parts) as url:
            await eventually(lambda: not parts.registry.pools().missing_roles())
            num_tasks = len(asyncio.all_tasks())
            async with watched_stalls() as stalls:
                left_at = await leave_all(url, moments)
                last_s = max(left_at.values())
                await eventually(lambda: is_idle(parts) and all(leg.ended_s is not None for leg in slow.legs))
                idle_s = time.monotonic()
            # What the machine did not give this process at all is not the router's doing.
            within_s = ABORTED_WITHIN_S + max(stalls)
            assert idle_s - last_s < within_s
            # Only a second look at prefill, half a second later, may still be under way for a release.
            await eventually(lambda: parts.releaser.num_pending == 0 and not slow.leases)
            for leg in slow.legs:
                assert leg.ended_s is not None
                assert leg.began_s - left_at[leg.request_id] < within_s, leg
                assert leg.ended_s - left_at[leg.request_id] < within_s, leg
            check_counts(parts)
            deadline_s = time.monotonic() + IDLE_WITHIN_S
            while parts.client.num_connections or len(asyncio.all_tasks()) > num_tasks:  # type: ignore[attr-defined]
                assert time.monotonic() < deadline_s, asyncio.all_tasks()
                await asyncio.sleep(0.05)
