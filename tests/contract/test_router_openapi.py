"""The router's OpenAPI page is true: what it lists exists, and what it promises is what comes back."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from starlette.routing import Route

from router.app import RouterApp, RouterParts, build_parts, create_app, create_control_app
from router.config import RouterConfig

# Pages for people and programs that show the API, not part of it.
OF_THE_PAGE = {"/openapi.json", "/docs", "/docs/oauth2-redirect"}
NAMES = {"worker_id": "nobody", "model_id": "team/none", "response_id": "resp_1"}
OUR_404S = ("worker_not_found", "model_not_found")
TWO_PORTS = RouterConfig(port=8000, metrics_port=8001)


CREATORS: tuple[Callable[[RouterParts], FastAPI], ...] = (create_app, create_control_app)


@pytest.fixture(params=["one port", "api", "control"])
def app(request: pytest.FixtureRequest) -> FastAPI:
    if request.param == "control":
        return create_control_app(build_parts(TWO_PORTS))
    return create_app(build_parts(RouterConfig() if request.param == "one port" else TWO_PORTS))


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
        yield client


@pytest.fixture
async def page(http: httpx.AsyncClient) -> dict[str, Any]:
    page: dict[str, Any] = (await http.get("/openapi.json")).json()
    return page


def listed(page: dict[str, Any]) -> set[tuple[str, str]]:
    return {(path, method) for path, methods in page["paths"].items() for method in methods}


def served(app: FastAPI) -> set[tuple[str, str]]:
    """Every path and method that the application routes, in the page's spelling."""
    routes = [route for route in app.routes if isinstance(route, Route)]
    assert len(routes) == len(app.routes)
    return {
        (route.path_format, method.lower()) for route in routes for method in (route.methods or {}) if method != "HEAD"
    }


def test_the_page_lists_what_is_served_and_nothing_else(app: FastAPI, page: dict[str, Any]) -> None:
    assert listed(page) == {(path, method) for path, method in served(app) if path not in OF_THE_PAGE}


def test_what_skips_the_search_for_a_route_is_listed_too(app: FastAPI, page: dict[str, Any]) -> None:
    if isinstance(app, RouterApp):
        assert app.generating
        assert {(path, "post") for path in app.generating} <= listed(page)


def test_with_two_ports_clients_have_one_and_operators_and_workers_the_other() -> None:
    parts = build_parts(TWO_PORTS)
    api, control = ({path for path, _ in served(create(parts))} - OF_THE_PAGE for create in CREATORS)
    assert api & control == {"/health", "/ready"}
    assert {path for path in api - control if not path.startswith("/v1/")} == {"/tokenize", "/detokenize"}
    assert {path for path in control - api if not path.startswith("/internal/")} == {"/metrics"}
    everything = {path for path, _ in served(create_app(build_parts(RouterConfig())))} - OF_THE_PAGE
    assert api | control == everything


@pytest.mark.parametrize("path", ["/metrics", "/internal/workers"])
async def test_a_client_finds_nothing_of_the_other_port_on_its_own(path: str) -> None:
    transport = httpx.ASGITransport(create_app(build_parts(TWO_PORTS)))
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        assert (await http.get(path)).status_code == 404


async def test_every_listed_route_exists(page: dict[str, Any], http: httpx.AsyncClient) -> None:
    for path, method in listed(page):
        answer = await http.request(method, path.format(**NAMES), content=b"")
        assert answer.status_code != 405, (path, method)
        assert answer.status_code != 404 or answer.json()["error"]["code"] in OUR_404S, (path, method)


def test_every_schema_is_one(page: dict[str, Any]) -> None:
    bodies = [op["requestBody"] for methods in page["paths"].values() for op in methods.values() if "requestBody" in op]
    schemas = [content["schema"] for body in bodies for content in body["content"].values()]
    assert len(schemas) >= 2
    for schema in [*schemas, *page["components"]["schemas"].values()]:
        Draft202012Validator.check_schema(schema)


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
