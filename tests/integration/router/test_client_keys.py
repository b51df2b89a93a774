"""Use is counted by the name of an API key, and one name can't take the whole router."""

import asyncio
from typing import Any

import httpx
import pytest

from router.api_keys import name_keys
from tests.integration.router.conftest import CHAT, TEXT, Cluster
from tests.integration.router.serving import eventually

ALICE, ALICES_OTHER, BOB, NAMELESS = ({"authorization": f"Bearer sk-{n}"} for n in range(4))


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"api_keys": ["alice:sk-0", "alice:sk-1", "bob:sk-2", "sk-3"], "max_in_flight_per_key": 2}


async def counted(cluster: Cluster, name: str, code: int) -> float:
    return await cluster.metric(f'tandem_router_key_requests_total{{code="{code}",key="{name}"}}')


async def in_flight(cluster: Cluster, name: str) -> float:
    return await cluster.metric(f'tandem_router_key_requests_in_flight{{key="{name}"}}')


async def hold_two(cluster: Cluster, headers: dict[str, str]) -> "list[asyncio.Task[httpx.Response]]":
    """Two requests that decode workers have, and keep until ``let_go``."""
    for decode in cluster.decodes:
        decode.faults.append("hold")
    posts = [cluster.http.post("/v1/completions", json=TEXT, headers=headers) for _ in range(2)]
    tasks = [asyncio.create_task(post) for post in posts]
    await eventually(lambda: sum(len(decode.bodies) for decode in cluster.decodes) == 2)
    return tasks


def let_go(cluster: Cluster) -> None:
    for decode in cluster.decodes:
        decode.gate.set()


async def test_requests_are_counted_by_name_and_code_from_0_on(cluster: Cluster) -> None:
    text = (await cluster.http.get("/metrics")).text
    for name in ("alice", "bob", "key-4"):
        assert f'tandem_router_key_requests_total{{code="200",key="{name}"}} 0.0' in text
    for headers in (ALICE, ALICES_OTHER, NAMELESS):
        assert (await cluster.http.post("/v1/completions", json=TEXT, headers=headers)).status_code == 200
    assert (await cluster.http.post("/v1/chat/completions", json=CHAT | {"n": 0}, headers=ALICE)).status_code == 400
    assert [await counted(cluster, name, 200) for name in ("alice", "bob", "key-4")] == [2, 0, 1]
    assert await counted(cluster, "alice", 400) == 1


async def test_no_key_is_in_the_metrics_or_the_log(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    await cluster.http.post("/v1/completions", json=TEXT, headers=ALICE)
    await cluster.http.post("/v1/completions", json=TEXT, headers={"authorization": "Bearer sk-wrong"})
    assert "sk-" not in (await cluster.http.get("/metrics")).text
    assert "sk-" not in caplog.text


async def test_a_name_at_its_limit_gets_429_over_all_its_keys_and_others_are_served(cluster: Cluster) -> None:
    held = await hold_two(cluster, ALICE)
    for headers in (ALICE, ALICES_OTHER):
        answer = await cluster.http.post("/v1/completions", json=TEXT, headers=headers)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert answer.json()["error"]["type"] == "rate_limit_error"
    assert await in_flight(cluster, "alice") == 2
    assert (await cluster.http.post("/v1/completions", json=TEXT, headers=BOB)).status_code == 200
    let_go(cluster)
    assert [answer.status_code for answer in await asyncio.gather(*held)] == [200, 200]
    assert (await cluster.http.post("/v1/completions", json=TEXT, headers=ALICE)).status_code == 200
    assert (await counted(cluster, "alice", 429), await counted(cluster, "alice", 200)) == (2, 3)


async def test_a_client_that_leaves_frees_its_place(cluster: Cluster) -> None:
    for task in await hold_two(cluster, ALICE):
        task.cancel()
    await eventually(lambda: dict(cluster.parts.usage.in_flight())["alice"] == 0)
    assert (await cluster.http.post("/v1/completions", json=TEXT, headers=ALICE)).status_code == 200
    assert await counted(cluster, "alice", 499) == 2


async def test_a_key_that_is_taken_away_ends_nothing_that_runs(cluster: Cluster) -> None:
    held = await hold_two(cluster, ALICE)
    cluster.parts.auth.replace(name_keys(["bob:sk-2"]))
    assert (await cluster.http.post("/v1/completions", json=TEXT, headers=ALICE)).status_code == 401
    assert (await cluster.http.get("/v1/models", headers=ALICE)).status_code == 401
    let_go(cluster)
    assert [answer.status_code for answer in await asyncio.gather(*held)] == [200, 200]
    assert await in_flight(cluster, "alice") == 0


async def test_without_a_key_nothing_is_counted_for_anyone(cluster: Cluster) -> None:
    assert (await cluster.http.post("/v1/completions", json=TEXT)).status_code == 401
    lines = (await cluster.http.get("/metrics")).text.splitlines()
    assert [line for line in lines if line.startswith("tandem_router_key_requests") and not line.endswith(" 0.0")] == []


async def tokens(cluster: Cluster, name: str) -> list[float]:
    return [
        await cluster.metric(f'tandem_router_key_tokens_total{{key="{name}",kind="{kind}"}}')
        for kind in ("prompt", "output")
    ]


async def test_tokens_are_counted_from_the_end_of_whole_answers_and_streams(cluster: Cluster) -> None:
    assert await tokens(cluster, "alice") == [0, 0]
    for decode in cluster.decodes:
        decode.whole = b'{"choices":[{"text":"a \\"usage\\":{}"}],"usage":{"prompt_tokens":30,"completion_tokens":4}}'
        decode.pieces[1] = b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":5}}\n\n'
    await cluster.http.post("/v1/completions", json=TEXT, headers=ALICE)
    assert await tokens(cluster, "alice") == [30, 4]
    await cluster.http.post("/v1/completions", json=TEXT | {"stream": True}, headers=ALICES_OTHER)
    assert await tokens(cluster, "alice") == [60, 9]
    assert await tokens(cluster, "bob") == [0, 0]


async def test_a_stream_that_says_no_tokens_is_counted_as_that(cluster: Cluster) -> None:
    counted_without = 'tandem_router_key_requests_without_usage_total{key="bob"}'
    assert await cluster.metric(counted_without) == 0
    for decode in cluster.decodes:
        decode.pieces = [b'data: {"choices":[{"text":"a"}]}\n\n', b"data: [DONE]\n\n"]
    await cluster.http.post("/v1/completions", json=TEXT | {"stream": True}, headers=BOB)
    assert await cluster.metric(counted_without) == 1
    await cluster.http.post("/v1/completions", json=TEXT | {"n": 0}, headers=BOB)
    assert await cluster.metric(counted_without) == 1
