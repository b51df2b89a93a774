"""``tandem status`` tells people what the router says, with or without the cluster token."""

from typing import Any

import httpx
import pytest

from deploy.status import StatusError, fetch_status

URL = "http://router:8000"
WORKER = {
    "worker_id": "decode-0",
    "role": "decode",
    "url": "http://127.0.0.1:9001",
    "is_suspect": False,
    "status": {
        "state": "ready",
        "num_requests_running": 3,
        "num_requests_waiting": 11,
        "num_leases": 7,
        "kv_cache_usage": 0.42,
    },
}


def router(workers: list[dict[str, Any]], missing: list[str], token: str = "") -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/ready":
            return httpx.Response(503 if missing else 200, json={"ready": not missing, "missing": missing})
        if token and request.headers.get("Authorization") != f"Bearer {token}":
            return httpx.Response(401, json={})
        return httpx.Response(200, json={"workers": workers})

    return httpx.MockTransport(answer)


def test_a_ready_router_is_shown_with_its_workers_and_their_load() -> None:
    text, is_ready = fetch_status(URL, {}, router([WORKER], []))
    first, _, row = text.splitlines()
    assert is_ready
    assert first == f"{URL} is ready"
    assert row.split() == ["decode-0", "decode", "ready", "3", "11", "7", "42%", "http://127.0.0.1:9001"]


def test_what_is_missing_is_named() -> None:
    text, is_ready = fetch_status(URL, {}, router([], ["prefill", "decode"]))
    assert not is_ready
    assert text.splitlines() == [
        f"{URL} is not ready: no usable prefill and no usable decode worker",
        "  no worker is known",
    ]


def test_a_worker_that_could_not_be_reached_is_shown_as_suspect() -> None:
    text, _ = fetch_status(URL, {}, router([{**WORKER, "is_suspect": True}], []))
    assert "suspect" in text


def test_without_the_token_readiness_is_shown_and_the_token_is_asked_for() -> None:
    text, is_ready = fetch_status(URL, {}, router([WORKER], [], token="secret"))
    assert is_ready
    assert "TANDEM_CLUSTER_TOKEN; the router answered 401" in text


def test_the_token_of_the_environment_is_sent() -> None:
    text, _ = fetch_status(URL, {"TANDEM_CLUSTER_TOKEN": "secret"}, router([WORKER], [], token="secret"))
    assert "decode-0" in text


def test_an_address_where_nothing_listens_is_an_error() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(StatusError, match=f"no router answers at {URL}"):
        fetch_status(URL, {}, httpx.MockTransport(refuse))


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}"])
def test_another_kind_of_server_is_not_taken_for_a_router(body: bytes) -> None:
    with pytest.raises(StatusError, match="is not a tandem router"):
        fetch_status(URL, {}, httpx.MockTransport(lambda _: httpx.Response(200, content=body)))
