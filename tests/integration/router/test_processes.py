"""Several processes on one port are one router: to clients, to workers, and to who reads its metrics.

One router for all these tests, as its start is most of their time; what it counts goes on from one to the next.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.router.processes import START_LIMIT_S
from tests.integration.router.serving import eventually, unused_url
from tests.integration.router.several import (
    ANSWERING,
    GOOD,
    IN_FLIGHT,
    MISSING,
    NUM_PROCESSES,
    NUM_REQUESTS,
    Several,
    process_of,
    several,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "sk-1"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"alice:{KEY}\n")
    return file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole_router(key_file: Path) -> AsyncIterator[Several]:
    async with several("--api-keys-file", str(key_file)) as router:
        router.http.headers["authorization"] = f"Bearer {KEY}"
        yield router


@pytest_asyncio.fixture(loop_scope="module")
async def router(whole_router: Several) -> Several:
    """With both workers, and idle."""
    await whole_router.beat()
    await whole_router.wait_until_told(200)
    await whole_router.wait_until_all_serve()
    return whole_router


async def test_requests_are_spread_and_counted_once(router: Several) -> None:
    before = await router.metrics()
    served_by = Counter(await router.ask_all())
    assert len(served_by) == NUM_PROCESSES
    after = await router.metrics()
    for name in (
        'tandem_router_ttft_seconds_bucket{le="+Inf"}',
        "tandem_router_ttft_seconds_count",
        'tandem_router_key_requests_total{code="200",key="alice"}',
    ):
        assert after[name] - before[name] == NUM_REQUESTS
    assert after[GOOD] - before.get(GOOD, 0) == NUM_REQUESTS
    assert (after[ANSWERING], after[MISSING]) == (NUM_PROCESSES, 0)


async def test_figures_of_workers_are_there_once_and_not_once_for_each_process(router: Several) -> None:
    await router.beat(num_leases=2, kv_bytes_total=500)
    metrics = await router.metrics()
    assert metrics['tandem_router_workers{role="decode",state="ready"}'] == 1
    assert metrics['tandem_router_worker_leases{role="prefill",worker="prefill-0"}'] == 2
    assert metrics['tandem_router_worker_kv_bytes_total{role="decode",worker="decode-0"}'] == 500
    # The parts that the processes have make up the whole.
    assert metrics['tandem_router_tokens_limit{role="prefill"}'] == 1 << 20


async def test_what_is_in_flight_anywhere_is_shown(router: Several) -> None:
    num_before = len(router.decode.bodies)
    router.decode.faults.extend(["hold"] * NUM_REQUESTS)
    asking = [asyncio.create_task(router.post()) for _ in range(NUM_REQUESTS)]
    await eventually(lambda: len(router.decode.bodies) == num_before + NUM_REQUESTS)
    assert (await router.metrics())[IN_FLIGHT] == NUM_REQUESTS
    listed = (await router.control.get("/internal/workers")).json()["workers"]
    assert {worker["worker_id"]: worker["num_in_flight"] for worker in listed}["decode-0"] == NUM_REQUESTS
    router.decode.gate.set()
    answers = await asyncio.gather(*asking)
    assert len({process_of(answer) for answer in answers}) == NUM_PROCESSES
    assert (await router.metrics())[IN_FLIGHT] == 0


async def test_a_worker_comes_and_goes_for_all(router: Several) -> None:
    assert (await router.control.delete("/internal/workers/prefill-0")).status_code == 204
    await router.wait_until_told(503)
    assert (await router.control.get("/ready")).json() == {"ready": False, "missing": ["prefill"]}
    assert (await router.post()).status_code == 503
    await router.beat()
    await router.wait_until_told(200)
    assert (await router.control.get("/ready")).status_code == 200
    await router.ask_all()


async def test_a_worker_that_one_process_can_not_reach_is_a_suspect_for_all_until_it_is_heard(router: Several) -> None:
    worker_urls = router.worker_urls
    router.worker_urls = (worker_urls[0], unused_url())
    await router.beat()
    router.worker_urls = worker_urls
    # Which process answers is a matter of chance; the first that tries to connect finds out.
    assert (await router.post()).status_code in (502, 503)
    await router.wait_until_told(503)
    assert (await router.control.get("/ready")).json()["missing"] == ["decode"]
    assert (await router.metrics())['tandem_router_workers{role="decode",state="suspect"}'] == 1
    await router.beat()
    await router.wait_until_told(200)


async def test_one_that_hangs_holds_up_no_scrape_and_is_shown_as_missing(router: Several) -> None:
    await router.ask_all()
    shown, [hanging, _] = await router.metrics(), router.children()
    os.kill(hanging, signal.SIGSTOP)
    try:
        async with asyncio.timeout(START_LIMIT_S):
            metrics = await router.metrics()
    finally:
        os.kill(hanging, signal.SIGCONT)
    assert (metrics[ANSWERING], metrics[MISSING]) == (NUM_PROCESSES - 1, 1)
    assert metrics[GOOD] == shown[GOOD]
    await router.wait_until_all_serve()


async def test_all_read_their_keys_again_on_sighup(router: Several, key_file: Path) -> None:
    async def statuses(key: str) -> set[int]:
        headers = {"authorization": f"Bearer {key}"}
        return {(await router.http.get("/v1/models", headers=headers)).status_code for _ in range(NUM_REQUESTS // 2)}

    assert (await statuses(KEY), await statuses("sk-2")) == ({200}, {401})
    with key_file.open("a") as file:
        file.write("bob:sk-2\n")
    router.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(START_LIMIT_S):
        while await statuses("sk-2") != {200}:
            pass
    assert (await router.metrics())['tandem_router_key_requests_total{code="200",key="bob"}'] == 0


async def test_one_that_is_told_to_stop_is_replaced_and_all_that_it_counted_stays(router: Several) -> None:
    before = await router.metrics()
    served_by = set(await router.ask_all())
    [stopping, _] = router.children()
    os.kill(stopping, signal.SIGTERM)
    await eventually(lambda: stopping not in router.children())
    await router.wait_until_all_serve()
    assert (await router.metrics())[GOOD] - before[GOOD] == NUM_REQUESTS
    assert len(set(await router.ask_all()) - served_by) == 1
