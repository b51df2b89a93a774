"""``tandem status`` tells people what the router says, with or without the cluster token."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.status import StatusError, fetch_status, read_addresses

URL = "http://router:8000"
CONTROL_URL = "http://router:9000"
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


def status(environ: dict[str, str], transport: httpx.MockTransport, control_url: str = CONTROL_URL) -> tuple[str, bool]:
    return fetch_status(URL, control_url, environ, transport)


def router(workers: list[dict[str, Any]], missing: list[str], token: str = "") -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/ready":
            return httpx.Response(503 if missing else 200, json={"ready": not missing, "missing": missing})
        if request.url.port != 9000:
            return httpx.Response(404, json={})
        if token and request.headers.get("Authorization") != f"Bearer {token}":
            return httpx.Response(401, json={})
        return httpx.Response(200, json={"workers": workers})

    return httpx.MockTransport(answer)


def test_a_ready_router_is_shown_with_its_workers_and_their_load() -> None:
    text, is_ready = status({}, router([WORKER], []))
    first, second, _, row = text.splitlines()
    assert is_ready
    assert first == f"{URL} is ready"
    assert f"{CONTROL_URL}/metrics" in second
    assert row.split() == ["decode-0", "decode", "ready", "3", "11", "7", "42%", "http://127.0.0.1:9001"]


def test_what_is_missing_is_named() -> None:
    text, is_ready = status({}, router([], ["prefill", "decode"]))
    assert not is_ready
    assert [text.splitlines()[0], text.splitlines()[-1]] == [
        f"{URL} is not ready: no usable prefill and no usable decode worker",
        "  no worker is known",
    ]


def test_a_worker_that_could_not_be_reached_is_shown_as_suspect() -> None:
    text, _ = status({}, router([{**WORKER, "is_suspect": True}], []))
    assert "suspect" in text


def test_without_the_token_readiness_is_shown_and_the_token_is_asked_for() -> None:
    text, is_ready = status({}, router([WORKER], [], token="secret"))
    assert is_ready
    assert "TANDEM_CLUSTER_TOKEN; the router answered 401" in text


def test_the_token_of_the_environment_is_sent() -> None:
    text, _ = status({"TANDEM_CLUSTER_TOKEN": "secret"}, router([WORKER], [], token="secret"))
    assert "decode-0" in text


def test_asked_at_its_api_alone_it_is_said_where_the_workers_are_shown() -> None:
    text, is_ready = status({}, router([WORKER], []), control_url=URL)
    assert is_ready
    assert "metrics port" in text
    assert "decode-0" not in text


def test_a_router_that_has_all_it_needs_and_is_not_ready_is_stopping() -> None:
    stopping = httpx.MockTransport(lambda _: httpx.Response(503, json={"ready": False, "missing": [], "workers": []}))
    text, is_ready = status({}, stopping)
    assert not is_ready
    assert "it is stopping" in text


def test_the_addresses_of_a_deployment_are_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "addresses.json").write_text(json.dumps({"api": URL, "control": CONTROL_URL}))
    assert read_addresses(tmp_path) == (URL, CONTROL_URL)


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_file_that_holds_no_addresses_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "addresses.json").write_text(text)
    with pytest.raises(StatusError, match="--router URL"):
        read_addresses(tmp_path)


def test_an_address_where_nothing_listens_is_an_error() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(StatusError, match=f"no router answers at {URL}"):
        status({}, httpx.MockTransport(refuse))


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}"])
def test_another_kind_of_server_is_not_taken_for_a_router(body: bytes) -> None:
    with pytest.raises(StatusError, match="is not a tandem router"):
        status({}, httpx.MockTransport(lambda _: httpx.Response(200, content=body)))
