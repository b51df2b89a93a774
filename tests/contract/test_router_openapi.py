"""The router's OpenAPI page is true: what it lists exists, and what it promises is what comes back."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from router.app import build_parts, create_app
from router.config import RouterConfig

ROUTES = {
    ("/v1/chat/completions", "post"),
    ("/v1/completions", "post"),
    ("/v1/models", "get"),
    ("/health", "get"),
    ("/ready", "get"),
    ("/metrics", "get"),
    ("/internal/workers", "post"),
    ("/internal/workers", "get"),
    ("/internal/workers/check", "post"),
    ("/internal/workers/{worker_id}", "delete"),
}


@pytest.fixture
def app() -> FastAPI:
    return create_app(build_parts(RouterConfig()))


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
        yield client


@pytest.fixture
async def page(http: httpx.AsyncClient) -> dict[str, Any]:
    page: dict[str, Any] = (await http.get("/openapi.json")).json()
    return page


def test_the_page_lists_every_route(page: dict[str, Any]) -> None:
    assert {(path, method) for path, methods in page["paths"].items() for method in methods} == ROUTES


async def test_every_listed_route_exists(page: dict[str, Any], http: httpx.AsyncClient) -> None:
    for path, methods in page["paths"].items():
        for method in methods:
            answer = await http.request(method, path.format(worker_id="nobody"), content=b"")
            assert answer.status_code != 405, (path, method)
            is_ours = answer.status_code != 404 or answer.json()["error"]["code"] == "worker_not_found"
            assert is_ours, (path, method)


async def test_the_docs_page_is_there(http: httpx.AsyncClient) -> None:
    answer = await http.get("/docs")
    assert answer.status_code == 200
    assert "/openapi.json" in answer.text


def test_every_reference_resolves(page: dict[str, Any]) -> None:
    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            here = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return here + [ref for value in node.values() for ref in references(value)]
        return [ref for value in node for ref in references(value)] if isinstance(node, list) else []

    found = references(page)
    assert found
    for reference in found:
        target: Any = page
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_error_has_the_promised_shape(page: dict[str, Any], http: httpx.AsyncClient, path: str) -> None:
    answer = await http.post(path, content=b"{")
    promised = page["paths"][path]["post"]["responses"][str(answer.status_code)]
    assert promised["content"]["application/json"]["schema"]["$ref"] == "#/components/schemas/Error"
    required = page["components"]["schemas"]["Error"]["properties"]["error"]["required"]
    assert sorted(answer.json()["error"]) == sorted(required)
