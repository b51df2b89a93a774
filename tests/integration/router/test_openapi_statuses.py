"""Each status on the OpenAPI page comes about, with a body as the page promises; its examples are served."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from router.app import build_parts, create_app
from router.config import RouterConfig
from tests.integration.router.api_answers import Answer, Json, chat_text
from tests.integration.router.conftest import Cluster, cluster_headers

PAGE: Json = create_app(build_parts(RouterConfig())).openapi()
KEY = "right"
MODEL = "tandem-nano"  # that of the page's examples
MAX_BODY_BYTES = 10_000


def operations() -> list[tuple[str, str, Json]]:
    return [(path, method, op) for path, methods in PAGE["paths"].items() for method, op in methods.items()]


def examples(path: str) -> Json:
    body: Json = PAGE["paths"][path]["post"]["requestBody"]["content"]["application/json"]["examples"]
    return body


BY_WORKERS = [path for path, _, op in operations() if "429" in op["responses"]]
EXAMPLES = [(path, name) for path in BY_WORKERS for name in examples(path)]
STATUSES = [(path, method, status) for path, method, op in operations() for status in op["responses"]]


@pytest.fixture
def settings() -> dict[str, Any]:
    return {
        "api_keys": [KEY],
        "max_body_bytes": MAX_BODY_BYTES,
        "prefill_timeout_s": 0.1,
        "decode_idle_timeout_s": 0.1,
    }


@pytest.fixture
async def named(cluster: Cluster) -> Cluster:
    """The cluster, serving the model of the page's examples, with an answer for each API."""
    for worker in [*cluster.prefills, *cluster.decodes]:
        await cluster.send_beat(cluster.registration(worker, model=MODEL))
    text = Answer(b'{"id":"cmpl-1","choices":[{"index":0,"text":"x"}]}', (b"data: [DONE]\n\n",))
    for decode in cluster.decodes:
        decode.answers |= {"/v1/chat/completions": chat_text("Hello"), "/v1/completions": text}
    return cluster


def example(path: str, name: str = "whole") -> Json:
    body: Json = examples(path)[name]["value"]
    return body


def check_promise(answer: httpx.Response, path: str, method: str) -> None:
    promised = PAGE["paths"][path][method]["responses"][str(answer.status_code)].get("content", {})
    if not promised:
        assert answer.content == b""
        return
    kind = answer.headers["content-type"].partition(";")[0]
    if kind == "application/json":
        schema = promised[kind]["schema"] | {"components": PAGE["components"]}
        Draft202012Validator(schema).validate(answer.json())
    else:
        assert kind in promised


@pytest.mark.parametrize(("path", "name"), EXAMPLES)
async def test_an_example_fits_its_schema_and_is_served(named: Cluster, path: str, name: str) -> None:
    body = example(path, name)
    schema = PAGE["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    Draft202012Validator(schema).validate(body)
    answer = await named.http.post(path, json=body, headers={"x-api-key": KEY})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream" if name == "streamed" else "application/json")
    check_promise(answer, path, "post")


Bring = Callable[[Cluster, str, str], Awaitable[httpx.Response]]
NAMES = {"worker_id": "nobody", "model_id": "none", "response_id": "resp_1"}


async def ask(cluster: Cluster, path: str, method: str, **request: Any) -> httpx.Response:
    """A good request, except for what ``request`` replaces."""
    headers = cluster_headers() if path.startswith("/internal") else {"authorization": f"Bearer {KEY}"}
    if path in BY_WORKERS and not request.keys() & {"content", "json"}:
        request["json"] = example(path)
    return await cluster.http.request(method, path.format(**NAMES), **{"headers": headers} | request)


async def without_a_key(cluster: Cluster, path: str, method: str) -> httpx.Response:
    return await ask(cluster, path, method, headers={})


async def with_half_a_body(cluster: Cluster, path: str, method: str) -> httpx.Response:
    return await ask(cluster, path, method, content=b"{")


async def with_too_long_a_body(cluster: Cluster, path: str, method: str) -> httpx.Response:
    return await ask(cluster, path, method, content=b" " * (MAX_BODY_BYTES + 1))


async def for_something_unknown(cluster: Cluster, path: str, method: str) -> httpx.Response:
    body = {"json": example(path) | {"model": "none"}} if path in BY_WORKERS else {}
    return await ask(cluster, path, method, **body)


def after(*faults: Any) -> Bring:
    async def bring(cluster: Cluster, path: str, method: str) -> httpx.Response:
        for prefill in cluster.prefills:
            prefill.faults.extend(faults)
        return await ask(cluster, path, method)

    return bring


async def without_workers(cluster: Cluster, path: str, method: str) -> httpx.Response:
    await cluster.keep_only()
    return await ask(cluster, path, method)


async def of_a_worker_that_pairs_with_none(cluster: Cluster, path: str, method: str) -> httpx.Response:
    return await ask(cluster, path, method, json=registration(cluster, path, fingerprint={"max_model_len": "1"}))


def registration(cluster: Cluster, path: str, **replaced: Any) -> Json:
    newcomer = cluster.registration(cluster.prefill, worker_id="new", model=MODEL, **replaced).model_dump(mode="json")
    if path.endswith("/check"):
        kept = ("worker_id", "role", "model", "wire_version", "fingerprint")
        return {name: newcomer[name] for name in kept}
    return {"registration": newcomer, "status": {"state": "ready"}}


async def all_well(cluster: Cluster, path: str, method: str) -> httpx.Response:
    if method == "post" and path.startswith("/internal"):
        return await ask(cluster, path, method, json=registration(cluster, path))
    if "{" in path:
        return await ask(cluster, path.format(worker_id="prefill-1", model_id=MODEL, response_id="resp_1"), method)
    return await ask(cluster, path, method)


SCENES: dict[str, Bring] = {
    "200": all_well,
    "204": all_well,
    "400": with_half_a_body,
    "401": without_a_key,
    "404": for_something_unknown,
    "409": of_a_worker_that_pairs_with_none,
    "413": with_too_long_a_body,
    "429": after(429),
    "502": after("break", "break"),
    "503": without_workers,
    "504": after("hang"),
}


@pytest.mark.parametrize(("path", "method", "status"), STATUSES)
async def test_a_documented_status_comes_about_as_promised(named: Cluster, path: str, method: str, status: str) -> None:
    answer = await SCENES[status](named, path, method)
    assert str(answer.status_code) == status, answer.text
    check_promise(answer, path, method)
