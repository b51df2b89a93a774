"""The guard reads a request's body and hands it on as it came, whatever it is; nothing gets by it unread."""

import json
from typing import Any

import pytest

from tests.unit.vllm_engine.factories import ASK, params
from tests.unit.vllm_engine.guarded import Guarded, Reply
from wire.refusal import Refusal
from wire.worker import WorkerRole

GOOD = json.dumps({"prompt": "x", "kv_transfer_params": params()}).encode()
FORGED = params() | {"signature": "0" * 64}


def request(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_chunks_is_checked_whole_and_arrives_in_its_chunks() -> None:
    worker = Guarded()
    chunks = [request(GOOD[:10], more=True), request(b"", more=True), request(GOOD[10:200], more=True)]
    chunks.append(request(GOOD[200:]))
    assert Reply(await worker.call(*chunks)).status == 200
    assert worker.inner.messages == chunks


async def test_a_forged_handoff_in_chunks_is_refused() -> None:
    worker = Guarded()
    body = json.dumps({"kv_transfer_params": FORGED}).encode()
    sent = await worker.call(request(body[:30], more=True), request(body[30:]))
    assert Reply(sent).refusal == Refusal.SIGNATURE.value
    assert worker.inner.scopes == []


async def test_what_comes_after_the_body_reaches_vllm_too() -> None:
    worker = Guarded()
    later: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        later.extend([await receive(), await receive(), await receive()])

    worker.guard._app = inner
    await worker.call(request(GOOD))
    assert later == [request(GOOD), {"type": "http.disconnect"}, {"type": "http.disconnect"}]


async def test_a_client_that_leaves_within_its_body_is_vllm_s_to_notice() -> None:
    worker = Guarded()
    assert await worker.call(request(GOOD[:50], more=True), {"type": "http.disconnect"}) == []
    assert worker.inner.messages == [request(GOOD[:50], more=True), {"type": "http.disconnect"}]


@pytest.mark.parametrize("path", ["/tandem/release", "/tandem/drain"])
async def test_our_own_routes_are_not_read(path: str) -> None:
    worker = Guarded()
    assert (await worker.post(FORGED, path=path)).status == 200


@pytest.mark.parametrize("path", ["/tandemx", "/v1/tandem/completions", "/inference/v1/generate", "/pooling", "/"])
async def test_every_other_route_is_read(path: str) -> None:
    worker = Guarded()
    assert (await worker.post(FORGED, path=path)).refusal == Refusal.SIGNATURE.value


async def test_what_is_no_post_passes_unread() -> None:
    worker = Guarded()
    assert (await worker.post(FORGED, method="GET")).status == 200
    await worker.call(type="websocket")
    assert worker.inner.scopes[-1]["type"] == "websocket"
    await worker.call(type="lifespan")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"no json", b"[]", b'"x"', b"7", b"null", b'{"prompt": "x"} trailing', b"\x00\xff", b"[" * 5000]
)
async def test_a_body_that_is_no_json_object_is_vllm_s_to_refuse(body: bytes) -> None:
    worker = Guarded()
    assert (await worker.post_bytes(body)).status == 200
    assert worker.inner.bodies == [body]


def bodies(given: dict[str, Any]) -> dict[str, bytes]:
    """The same request written in ways that vLLM's JSON reader takes."""
    text = json.dumps({"prompt": "x", "kv_transfer_params": given})
    return {
        "plain": text.encode(),
        "key escaped": text.replace("kv_transfer_params", "kv\\u005ftransfer_params").encode(),
        "key twice": ('{"kv_transfer_params": null, ' + text[1:]).encode(),
        "white space around": f" \n{text}\n ".encode(),
        "NaN beside it": ('{"temperature": NaN, ' + text[1:]).encode(),
        "a lone surrogate beside it": ('{"user": "\\ud800", ' + text[1:]).encode(),
        "a huge number beside it": ('{"seed": 1' + "0" * 400 + ", " + text[1:]).encode(),
        "UTF-16": text.encode("utf-16"),
        "UTF-32": text.encode("utf-32"),
        "byte order mark": text.encode("utf-8-sig"),
    }


@pytest.mark.parametrize("way", bodies({}))
async def test_no_way_of_writing_a_forged_handoff_gets_it_past(way: str) -> None:
    body = bodies(FORGED)[way]
    assert json.loads(body)["kv_transfer_params"] == FORGED, "as Starlette reads it for vLLM"
    worker = Guarded()
    reply = await worker.post_bytes(body)
    assert worker.inner.bodies == []
    assert 400 <= reply.status < 500


@pytest.mark.parametrize("given", [FORGED, None, "x", params()])
@pytest.mark.parametrize("role", list(WorkerRole))
async def test_a_handoff_in_vllm_s_extra_arguments_is_refused(given: Any, role: WorkerRole) -> None:
    worker = Guarded(role)
    body = {"prompt": "x", "vllm_xargs": {"a": 1, "kv_transfer_params": given}}
    reply = await worker.post_bytes(json.dumps(body).encode())
    assert reply.refusal == Refusal.MALFORMED.value
    assert worker.inner.bodies == []


async def test_a_handoff_in_the_sampling_parameters_of_the_token_route_is_refused() -> None:
    worker = Guarded()
    body = {"token_ids": [1], "sampling_params": {"extra_args": {"kv_transfer_params": FORGED}}}
    reply = await worker.post_bytes(json.dumps(body).encode(), path="/inference/v1/generate")
    assert reply.refusal is not None
    assert worker.inner.bodies == []


@pytest.mark.parametrize("extra", [None, {}, {"a": 1}, [], "x"])
async def test_other_extra_arguments_pass(extra: Any) -> None:
    worker = Guarded()
    body = {"prompt": "x", "vllm_xargs": extra, "kv_transfer_params": params()}
    assert (await worker.post_bytes(json.dumps(body).encode())).status == 200


async def test_both_legs_fields_stay_as_they_are_for_vllm() -> None:
    worker = Guarded(WorkerRole.PREFILL)
    body = json.dumps({"kv_transfer_params": ASK, "z": 1, "a": 2}).encode()
    assert (await worker.post_bytes(body)).status == 200
    assert worker.inner.bodies == [body]
