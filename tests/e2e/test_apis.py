"""Responses and Messages get over the pair what they get from one engine, and each handoff is read."""

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.stack import MODEL, Stack

TALK = [{"role": "user", "content": "Why is the sky blue? " * 40}]
RESPONSES: dict[str, Any] = {"model": MODEL, "input": TALK, "max_output_tokens": 12, "temperature": 0}
MESSAGES: dict[str, Any] = {"model": MODEL, "messages": TALK, "max_tokens": 12, "temperature": 0}
APIS = pytest.mark.parametrize(
    ("path", "body", "result"),
    [("/v1/responses", RESPONSES, "output"), ("/v1/messages", MESSAGES, "content")],
    ids=["responses", "messages"],
)
BAD_SCHEMA = {"type": "nosuch"}


def num_reads(stack: Stack) -> float:
    return stack.metrics("decode")["tandem_kv_reads_total"]


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_ids(item) for key, item in value.items() if key not in ("id", "signature")}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


def post(stack: Stack, path: str, body: dict[str, Any]) -> httpx.Response:
    answer = stack.http.post(stack.url + path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


@APIS
def test_the_answer_equals_one_engines_and_its_prompt_was_handed_over(
    path: str, body: dict[str, Any], result: str, stack: Stack, single: OpenAI
) -> None:
    before = num_reads(stack)
    ours = post(stack, path, body).json()
    theirs = stack.http.post(str(single.base_url).removesuffix("/v1/") + path, json=body).json()
    assert without_ids(ours[result]) == without_ids(theirs[result])
    assert ours[result]
    assert num_reads(stack) == before + 1


@APIS
def test_a_stream_is_its_whole_answer_in_pieces(path: str, body: dict[str, Any], result: str, stack: Stack) -> None:
    whole = json.dumps(post(stack, path, body).json()[result])
    streamed = post(stack, path, body | {"stream": True}).text
    events = [json.loads(line[len("data: ") :]) for line in streamed.splitlines() if line.startswith("data: ")]
    assert events[-1]["type"] in ("response.completed", "message_stop")
    deltas = [event["delta"] for event in events if event["type"].endswith(("text.delta", "block_delta"))]
    texts = [delta if isinstance(delta, str) else delta.get("text") or delta.get("thinking") or "" for delta in deltas]
    assert len(texts) > 3, "it was streamed"
    assert json.dumps("".join(texts))[1:-1] in whole


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {
                "messages": TALK,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD_SCHEMA}},
            },
        ),
        ("/v1/completions", {"prompt": "Hi", "structured_outputs": {"regex": "("}}),
        ("/v1/responses", RESPONSES | {"text": {"format": {"type": "json_schema", "name": "x", "schema": BAD_SCHEMA}}}),
        ("/v1/messages", MESSAGES | {"output_config": {"format": {"type": "json_schema", "schema": BAD_SCHEMA}}}),
    ],
    ids=["chat", "completions", "responses", "messages"],
)
def test_a_grammar_that_does_not_compile_is_a_400_also_of_a_stream(
    path: str, body: dict[str, Any], is_stream: bool, stack: Stack
) -> None:
    answer = stack.http.post(stack.url + path, json=body | {"stream": is_stream})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


def test_tokens_are_counted_made_and_undone(stack: Stack) -> None:
    counted = post(stack, "/v1/messages/count_tokens", {"model": MODEL, "messages": TALK}).json()["input_tokens"]
    assert counted == post(stack, "/tokenize", {"model": MODEL, "messages": TALK}).json()["count"]
    tokens = post(stack, "/tokenize", {"model": MODEL, "prompt": "The sea", "add_special_tokens": False}).json()[
        "tokens"
    ]
    assert post(stack, "/detokenize", {"model": MODEL, "tokens": tokens}).json() == {"prompt": "The sea"}


def test_what_no_worker_serves_is_a_404(stack: Stack) -> None:
    answer = stack.http.post(f"{stack.url}/v1/embeddings", json={"model": MODEL, "input": "The sea"})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]
