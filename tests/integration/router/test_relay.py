"""A good request: one clean prefill, one decode that reads it, and decode's bytes as the answer."""

import asyncio
import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from router.body import KV_TRANSFER_PARAMS
from tests.integration.router.conftest import BOTH_APIS, CHAT, TEXT, TOKEN, Cluster

FULL_CHAT = CHAT | {
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 9,
    "max_completion_tokens": 8,
    "min_tokens": 2,
    "n": 1,
    "logprobs": True,
    "top_logprobs": 3,
    "stop": ["x"],
    "stop_token_ids": [5],
    "ignore_eos": True,
    "return_token_ids": True,
}


@BOTH_APIS
async def test_a_whole_answer_is_decodes_bytes(cluster: Cluster, path: str, body: dict[str, Any]) -> None:
    answer = await cluster.http.post(path, json=body)
    assert answer.status_code == 200
    assert answer.content == cluster.decode.whole
    assert answer.headers["content-type"] == "application/json"


@BOTH_APIS
async def test_a_stream_is_decodes_bytes(cluster: Cluster, path: str, body: dict[str, Any]) -> None:
    answer = await cluster.http.post(path, json=body | {"stream": True})
    assert answer.status_code == 200
    assert answer.content == b"".join(cluster.decode.pieces)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_events_that_are_cut_anywhere_arrive_whole_and_unchanged(cluster: Cluster) -> None:
    whole = b"".join(cluster.decode.pieces)
    for decode in cluster.decodes:
        decode.pieces = [whole[i : i + 1] for i in range(len(whole))]
    async with cluster.http.stream("POST", "/v1/completions", json=TEXT | {"stream": True}) as answer:
        received = [piece async for piece in answer.aiter_raw()]
    assert b"".join(received) == whole
    assert all(piece.endswith(b"\n\n") for piece in received)


async def test_the_first_event_is_passed_on_before_the_second_exists(cluster: Cluster) -> None:
    cluster.decode.faults.append("hang_midway")
    await cluster.keep_only(cluster.prefill, cluster.decode)
    async with cluster.http.stream("POST", "/v1/completions", json=TEXT | {"stream": True}) as answer:
        assert await anext(answer.aiter_raw()) == cluster.decode.pieces[0]


@BOTH_APIS
async def test_both_legs_use_the_same_path_and_one_handoff(cluster: Cluster, path: str, body: dict[str, Any]) -> None:
    assert (await cluster.http.post(path, json=body)).status_code == 200
    [prefilled] = cluster.prefill.requests + cluster.prefills[1].requests
    [decoded] = cluster.decode.requests + cluster.decodes[1].requests
    [handoff_id] = cluster.granted
    assert prefilled[KV_TRANSFER_PARAMS] == {"do_remote_decode": True, "handoff_id": handoff_id, "num_readers": 1}
    assert decoded[KV_TRANSFER_PARAMS]["handoff_id"] == handoff_id
    assert cluster.released == []


async def test_limits_and_stream_options_reach_decode_and_not_prefill(cluster: Cluster) -> None:
    """Cases 2, 3 and 4."""
    answer = await cluster.http.post("/v1/chat/completions", json=FULL_CHAT)
    assert answer.status_code == 200
    [prefilled] = cluster.prefill.requests
    [decoded] = cluster.decode.requests
    assert prefilled.keys() == {"model", "messages", "max_tokens", "stream", KV_TRANSFER_PARAMS}
    assert {key: value for key, value in decoded.items() if key != KV_TRANSFER_PARAMS} == FULL_CHAT


async def test_decode_gets_the_clients_bytes_and_prefill_the_same_nested_spelling(cluster: Cluster) -> None:
    tools = b'[{"type":"function","function":{"parameters":{"z":1.0,"a":1e2,"m":-0.0},"name":"f\\u00e9"}}]'
    raw = b'{ "tools": ' + tools + b', "messages": [{"role":"user","content":"hi"}],\n"max_tokens": 5 }\n'
    await cluster.http.post("/v1/chat/completions", content=raw)
    assert tools in cluster.prefill.bodies[0]
    assert cluster.decode.bodies[0].startswith(raw.rstrip()[:-1] + b',"kv_transfer_params":{')


@pytest.mark.parametrize("num_choices", [1, 4])
async def test_every_choice_is_a_promised_reader(cluster: Cluster, num_choices: int) -> None:
    for _ in range(10):
        answer = await cluster.http.post("/v1/completions", json=TEXT | {"n": num_choices, "temperature": 1})
        assert answer.status_code == 200
    assert sum(decode.num_reads for decode in cluster.decodes) == 10 * num_choices
    assert cluster.num_leases == 0


async def test_the_request_id_is_the_same_everywhere(cluster: Cluster) -> None:
    answer = await cluster.http.post("/v1/completions", json=TEXT, headers={"x-request-id": "mine-1"})
    ids = {answer.headers["x-request-id"], cluster.prefill.headers[0]["x-request-id"]}
    assert ids | {cluster.decode.headers[0]["x-request-id"]} == {"mine-1"}


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\tb", 'a"b'])
async def test_a_strange_request_id_is_replaced(cluster: Cluster, given: str) -> None:
    answer = await cluster.http.post("/v1/completions", json=TEXT, headers={"x-request-id": given})
    assert answer.headers["x-request-id"] not in ("", given)


async def test_workers_see_the_clusters_token_and_never_the_clients_headers(cluster: Cluster) -> None:
    headers = {"authorization": "Bearer client-key", "cookie": "a=b", "x-mine": "1"}
    assert (await cluster.http.post("/v1/completions", json=TEXT, headers=headers)).status_code == 200
    for seen in cluster.prefill.headers + cluster.decode.headers:
        assert seen["authorization"] == f"Bearer {TOKEN}"
        assert "cookie" not in seen
        assert "x-mine" not in seen


async def test_a_workers_inner_headers_stay_inside(cluster: Cluster) -> None:
    answer = await cluster.http.post("/v1/completions", json=TEXT)
    assert "x-engine-secret" not in answer.headers
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (TEXT | {"prompt_logprobs": 1}, "prompt_logprobs"),
        (TEXT | {"echo": True, "logprobs": 1}, "prompt_logprobs"),
        (TEXT | {"prompt": ["a", "b"]}, "multi_prompt"),
        (TEXT | {"use_beam_search": True, "n": 2}, "beam_search"),
    ],
)
async def test_what_a_handoff_cannot_serve_goes_to_decode_alone_and_is_counted(
    cluster: Cluster, body: dict[str, Any], reason: str
) -> None:
    answer = await cluster.http.post("/v1/completions", json=body)
    assert answer.content == cluster.decode.whole
    assert cluster.prefill.bodies + cluster.prefills[1].bodies == []
    assert [json.loads(raw) for raw in cluster.decode.bodies] == [body]
    assert await cluster.metric(f'tandem_router_path_total{{path="decode_only",reason="{reason}"}}') == 1


async def test_many_requests_at_once_spread_over_all_workers(cluster: Cluster) -> None:
    answers = await asyncio.gather(*(cluster.http.post("/v1/completions", json=TEXT) for _ in range(40)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(set(cluster.granted)) == 40
    assert all(len(worker.bodies) >= 10 for worker in [*cluster.prefills, *cluster.decodes])


async def test_the_openai_client_reads_answers_and_streams(cluster: Cluster) -> None:
    async with AsyncOpenAI(base_url=f"{cluster.http.base_url}/v1", api_key="k") as ai:
        answer = await ai.chat.completions.create(**CHAT)
        assert answer.choices[0].message.content == "Héllo"
        stream = await ai.chat.completions.create(**CHAT, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        assert text == "Héllo"
        assert [model.id async for model in ai.models.list()] == ["nano"]


async def test_a_request_is_measured(cluster: Cluster) -> None:
    await cluster.http.post("/v1/completions", json=TEXT)
    counted = 'tandem_router_requests_total{code="200",endpoint="completions",model="nano",path="prefill_decode"}'
    assert await cluster.metric(counted) == 1
    assert await cluster.metric('tandem_router_path_total{path="prefill_decode",reason="handoff"}') == 1
    for name in ("ttft_seconds", "e2e_seconds", "prefill_seconds", "handoff_blocks"):
        assert await cluster.metric(f"tandem_router_{name}_count") == 1
    assert await cluster.metric("tandem_router_handoff_blocks_sum") == 3


async def test_a_stream_is_measured_by_its_steps(cluster: Cluster) -> None:
    await cluster.http.post("/v1/completions", json=TEXT | {"stream": True})
    for name in ("ttft_seconds", "handoff_seconds", "first_decode_seconds"):
        assert await cluster.metric(f"tandem_router_{name}_count") == 1
    # At most one gap before each token's event but the first; the end is none.
    assert 0 <= await cluster.metric("tandem_router_itl_seconds_count") < len(cluster.decode.pieces) - 1


async def test_gaps_between_tokens_are_measured(cluster: Cluster) -> None:
    for decode in cluster.decodes:
        decode.gap_s = 0.06
    await cluster.http.post("/v1/completions", json=TEXT | {"stream": True})
    num_gaps = len(cluster.decode.pieces) - 2
    assert await cluster.metric("tandem_router_itl_seconds_count") == num_gaps
    assert await cluster.metric('tandem_router_itl_seconds_bucket{le="0.05"}') == 0
    assert await cluster.metric("tandem_router_itl_seconds_sum") >= 0.05 * num_gaps


async def test_no_prompt_is_logged(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    private = TEXT | {"prompt": "a confidential prompt"}
    await cluster.http.post("/v1/completions", json=private)
    await cluster.http.post("/v1/completions", json=private | {"n": 0})
    assert any("request" in record.message and "prefill_decode" in record.message for record in caplog.records)
    assert "confidential" not in caplog.text


async def test_a_body_of_5_mb_is_served(cluster: Cluster) -> None:
    """Case 26."""
    answer = await cluster.http.post("/v1/completions", json=TEXT | {"prompt": "x" * 5_000_000})
    assert answer.content == cluster.decode.whole
