"""Responses and Messages go through prefill and decode as chat does, and fail in their own words."""

import json
from typing import Any

import httpx
import pytest

from router.body import KV_TRANSFER_PARAMS
from tests.integration.router.api_answers import MODEL, Json, response_text
from tests.integration.router.conftest import CHAT, TEXT, Cluster

RESPONSES: Json = {"model": MODEL, "input": "hi"}
MESSAGES: Json = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
NEW_APIS = pytest.mark.parametrize(
    ("path", "body"), [("/v1/responses", RESPONSES), ("/v1/messages", MESSAGES)], ids=["responses", "messages"]
)
BODIES: dict[str, Json] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
EVERY_API = pytest.mark.parametrize(("path", "body"), BODIES.items(), ids=list(BODIES))


def check_error(path: str, answer: httpx.Response, status: int) -> str:
    """The error's message."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = check_shape(path, answer.json())
    return str(error["message"])


def check_shape(path: str, body: Json) -> Json:
    error: Json = body["error"]
    if path.startswith("/v1/messages"):
        assert body.keys() == {"type", "error"}
        assert body["type"] == "error"
        assert error.keys() == {"type", "message"}
    else:
        assert error.keys() == {"message", "type", "param", "code"}
    return error


@NEW_APIS
async def test_both_legs_use_the_same_path_and_one_handoff(cluster: Cluster, path: str, body: Json) -> None:
    answer = await cluster.http.post(path, json=body)
    assert (answer.status_code, answer.content) == (200, cluster.decode.answers[path].whole)
    [prefilled], [decoded] = cluster.prefill.requests, cluster.decode.requests
    [handoff_id] = cluster.granted
    assert prefilled[KV_TRANSFER_PARAMS] == {"do_remote_decode": True, "handoff_id": handoff_id, "num_readers": 1}
    assert decoded.pop(KV_TRANSFER_PARAMS)["handoff_id"] == handoff_id
    assert decoded == body
    assert cluster.released == []


@NEW_APIS
async def test_a_stream_is_decodes_bytes(cluster: Cluster, path: str, body: Json) -> None:
    answer = await cluster.http.post(path, json=body | {"stream": True})
    assert answer.content == b"".join(cluster.decode.answers[path].pieces)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_the_end_of_a_response_is_seen_in_an_event_of_any_size(cluster: Cluster) -> None:
    for decode in cluster.decodes:
        decode.answers["/v1/responses"] = response_text("x" * 100_000)
    answer = await cluster.http.post("/v1/responses", json=RESPONSES | {"stream": True})
    assert answer.content == b"".join(cluster.decode.answers["/v1/responses"].pieces)
    assert await cluster.metric("tandem_router_stream_failures_total") == 0


async def test_each_api_loses_on_the_one_token_leg_what_is_decodes_alone(cluster: Cluster) -> None:
    text = {"format": {"type": "json_schema", "name": "s", "schema": {"z": 1.0, "a": 1}}}
    full = RESPONSES | {"stream": True, "max_output_tokens": 8, "include": [], "top_logprobs": 2, "store": True}
    full |= {"stop": ["x"], "text": text, "instructions": "be brief"}
    assert (await cluster.http.post("/v1/responses", json=full)).status_code == 200
    [prefilled] = cluster.prefill.requests
    kept = {"model", "input", "text", "instructions"}
    assert prefilled.keys() == {*kept, "max_output_tokens", "stream", KV_TRANSFER_PARAMS}
    full = MESSAGES | {"stream": True, "stop_sequences": ["x"], "system": "be brief", "thinking": {"type": "disabled"}}
    assert (await cluster.http.post("/v1/messages", json=full)).status_code == 200
    [prefilled] = cluster.prefills[1].requests
    kept = {"model", "messages", "system", "thinking"}
    assert prefilled.keys() == {*kept, "max_tokens", "stream", KV_TRANSFER_PARAMS}


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", b"data: "),
        ("/v1/completions", b"data: "),
        ("/v1/responses", b"event: error\ndata: "),
        ("/v1/messages", b"event: error\ndata: "),
    ],
)
@pytest.mark.parametrize("fault", ["break_midway", "break_in_event", "no_done"])
async def test_a_stream_that_ends_early_ends_in_its_apis_error_event(
    cluster: Cluster, path: str, event: bytes, fault: str
) -> None:
    cluster.decode.faults.append(fault)
    answer = await cluster.http.post(path, json=BODIES[path] | {"stream": True})
    last = answer.content.removesuffix(b"\n\n").split(b"\n\n")[-1]
    assert last.startswith(event)
    data = json.loads(last[len(event) :])
    check_shape(path, {key: data[key] for key in ("type", "error") if key in data})
    assert await cluster.metric("tandem_router_stream_failures_total") == 1


async def test_a_broken_response_ends_with_the_next_number_in_its_sequence(cluster: Cluster) -> None:
    cluster.decode.faults.append("no_done")
    answer = await cluster.http.post("/v1/responses", json=RESPONSES | {"stream": True})
    numbers = [json.loads(line[6:])["sequence_number"] for line in answer.text.splitlines() if line.startswith("data:")]
    assert numbers == list(range(len(numbers)))


# --- what a worker refuses ---


@EVERY_API
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_prefill_4xx_comes_back_in_the_apis_shape(
    cluster: Cluster, path: str, body: Json, is_stream: bool
) -> None:
    cluster.prefill.faults.append(400)
    answer = await cluster.http.post(path, json=body | {"stream": is_stream})
    assert check_error(path, answer, 400) == "prefill-0 says 400"
    assert cluster.decode.bodies == []


def refusing_event(path: str, status: int) -> bytes:
    """How an engine says in a stream that it won't serve the request: with OpenAI's status, Anthropic's type."""
    kind = {400: "invalid_request_error", 500: "api_error", 503: "overloaded_error"}[status]
    error: Json = {"message": "no such grammar", "type": kind, "param": None, "code": status}
    if path == "/v1/messages":
        return b"event: error\ndata: " + json.dumps({"type": "error", "error": error}).encode() + b"\n\n"
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\ndata: [DONE]\n\n"


@EVERY_API
async def test_a_stream_that_begins_with_a_4xx_is_that_4xx(cluster: Cluster, path: str, body: Json) -> None:
    cluster.decode.faults.append({"pieces": [refusing_event(path, 400)]})
    answer = await cluster.http.post(path, json=body | {"stream": True})
    assert check_error(path, answer, 400) == "no such grammar"
    await cluster.check_nothing_left()
    assert await cluster.metric('tandem_router_releases_total{reason="decode_refused"}') == 1
    assert cluster.decodes[1].bodies == []


@EVERY_API
async def test_a_stream_that_begins_with_a_5xx_is_a_502_without_its_words(
    cluster: Cluster, path: str, body: Json
) -> None:
    cluster.decode.faults.append({"pieces": [refusing_event(path, 500)]})
    answer = await cluster.http.post(path, json=body | {"stream": True})
    assert "grammar" not in check_error(path, answer, 502)


@EVERY_API
async def test_a_stream_that_begins_with_a_503_is_tried_once_more_elsewhere(
    cluster: Cluster, path: str, body: Json
) -> None:
    cluster.decode.faults.append({"pieces": [refusing_event(path, 503)]})
    answer = await cluster.http.post(path, json=body | {"stream": True})
    assert answer.status_code == 200
    assert len(cluster.decodes[1].bodies) == 1


# --- what the router refuses ---


@EVERY_API
async def test_the_routers_own_errors_have_the_apis_shape(cluster: Cluster, path: str, body: Json) -> None:
    check_error(path, await cluster.http.post(path, content=b"{"), 400)
    check_error(path, await cluster.http.post(path, json=body | {"model": "gpt-9"}), 404)
    check_error(path, await cluster.http.get(path), 405)
    await cluster.keep_only(cluster.decode)
    check_error(path, await cluster.http.post(path, json=body), 503)
    await cluster.keep_only()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_output_tokens": 8193}, "max_output_tokens"),
    ],
)
async def test_what_workers_keep_no_memory_for_is_a_400_that_names_the_field(
    cluster: Cluster, fields: dict[str, Any], param: str
) -> None:
    answer = await cluster.http.post("/v1/responses", json=RESPONSES | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert cluster.prefill.bodies == cluster.decode.bodies == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("POST", "/v1/responses/resp_1/cancel"),
    ],
)
async def test_no_response_can_be_fetched_later(cluster: Cluster, method: str, path: str) -> None:
    answer = await cluster.http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_id")


async def test_tools_that_a_worker_runs_itself_go_to_decode_alone_and_are_counted(cluster: Cluster) -> None:
    body = RESPONSES | {"tools": [{"type": "web_search_preview"}]}
    assert (await cluster.http.post("/v1/responses", json=body)).status_code == 200
    assert cluster.prefill.bodies == []
    assert cluster.decode.requests == [body]
    assert await cluster.metric('tandem_router_path_total{path="decode_only",reason="server_tools"}') == 1


class TestApiKeys:
    """A key is taken from either header."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"api_keys": ["key-a", "key-b"]}

    @EVERY_API
    @pytest.mark.parametrize("headers", [{"x-api-key": "key-b"}, {"authorization": "Bearer key-a"}])
    async def test_with_a_key_in_either_header_a_client_is_served(
        self, cluster: Cluster, path: str, body: Json, headers: dict[str, str]
    ) -> None:
        assert (await cluster.http.post(path, json=body, headers=headers)).status_code == 200

    @EVERY_API
    @pytest.mark.parametrize("headers", [{}, {"x-api-key": ""}, {"x-api-key": "key-"}, {"x-api-key": "Bearer key-a"}])
    async def test_without_a_right_key_it_is_refused_in_the_apis_shape(
        self, cluster: Cluster, path: str, body: Json, headers: dict[str, str]
    ) -> None:
        check_error(path, await cluster.http.post(path, json=body, headers=headers), 401)
        assert cluster.prefill.bodies == []
