"""Models are found by every name that workers list, LoRA adapters among them, and routed to those that have them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError

from router.app import RouterParts, build_parts, create_app
from router.config import RouterConfig
from tests.integration.router.api_answers import MODEL, Json
from tests.integration.router.conftest import TEXT
from tests.integration.router.fake_workers import FakeDecode, FakePrefill
from tests.integration.router.serving import eventually, served

ADAPTER = "team/sql-lora"


@dataclass
class StaticPairs:
    """Two prefill and two decode workers by URL; only the last of each has the adapter."""

    parts: RouterParts
    http: httpx.AsyncClient
    prefills: list[FakePrefill]
    decodes: list[FakeDecode]


@pytest.fixture
async def static() -> AsyncIterator[StaticPairs]:
    prefills = [FakePrefill(f"prefill-{i}") for i in range(2)]
    decodes = [FakeDecode(f"decode-{i}", prefills={prefill.name: prefill for prefill in prefills}) for i in range(2)]
    prefills[1].models = decodes[1].models = [MODEL, ADAPTER]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(served(worker.app())) for worker in [*prefills, *decodes]]
        config = RouterConfig(prefill=tuple(urls[:2]), decode=tuple(urls[2:]), health_interval_s=0.05)
        parts = build_parts(config)
        url = await stack.enter_async_context(served(create_app(parts)))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
        await eventually(lambda: all(worker.is_usable for worker in parts.registry.workers()))
        yield StaticPairs(parts, http, prefills, decodes)
    assert all(prefill.leases == {} for prefill in prefills)


async def test_every_name_that_a_static_worker_lists_is_listed(static: StaticPairs) -> None:
    cards = (await static.http.get("/v1/models")).json()["data"]
    assert {card["id"]: card["max_model_len"] for card in cards} == {MODEL: 8192, ADAPTER: 8192}


async def test_a_model_is_shown_by_its_name_also_with_slashes(static: StaticPairs) -> None:
    assert (await static.http.get(f"/v1/models/{ADAPTER}")).json()["id"] == ADAPTER
    assert (await static.http.get("/v1/models/team%2Fsql-lora")).json()["id"] == ADAPTER
    answer = await static.http.get("/v1/models/gpt-9")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_adapters_requests_meet_only_workers_that_have_it(static: StaticPairs, is_stream: bool) -> None:
    body: Json = TEXT | {"model": ADAPTER, "stream": is_stream}
    for _ in range(4):
        assert (await static.http.post("/v1/completions", json=body)).status_code == 200
    assert [len(worker.bodies) for worker in static.prefills] == [0, 4]
    assert [len(worker.bodies) for worker in static.decodes] == [0, 4]
    assert {request["model"] for request in static.decodes[1].requests} == {ADAPTER}


async def test_the_base_models_requests_meet_all(static: StaticPairs) -> None:
    for _ in range(4):
        assert (await static.http.post("/v1/completions", json=TEXT)).status_code == 200
    assert [len(worker.bodies) for worker in [*static.prefills, *static.decodes]] == [2, 2, 2, 2]


async def test_an_adapter_that_is_unloaded_is_no_longer_served(static: StaticPairs) -> None:
    static.prefills[1].models = static.decodes[1].models = [MODEL]
    await eventually(lambda: ADAPTER not in static.parts.registry.pools().models)
    assert (await static.http.post("/v1/completions", json=TEXT | {"model": ADAPTER})).status_code == 404


async def test_the_openai_client_lists_and_finds_models(static: StaticPairs) -> None:
    async with AsyncOpenAI(base_url=f"{static.http.base_url}/v1", api_key="k") as ai:
        assert {model.id async for model in ai.models.list()} == {MODEL, ADAPTER}
        assert (await ai.models.retrieve(ADAPTER)).id == ADAPTER
        with pytest.raises(NotFoundError):
            await ai.models.retrieve("gpt-9")
