"""Bad input gets an OpenAI-shaped error at once, and the workers go on."""

import json
import re
import time
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import MAX_MODEL_LEN
from tests.stack import MODEL, Stack

LONG = "word " * 9000
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "Hi", "max_tokens": 2}
BOMB = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "minItems": 1_000_000_000}}}
AT_ONCE_S = 2.0

CASES: list[tuple[str, str, Any, int, str | None]] = [
    ("unknown chat model", "chat/completions", CHAT | {"model": "gpt-5"}, 404, "model"),
    ("unknown model", "completions", TEXT | {"model": "gpt-5"}, 404, "model"),
    ("messages of a wrong type", "chat/completions", CHAT | {"messages": "Hi"}, 400, "messages"),
    ("no messages", "chat/completions", CHAT | {"messages": []}, 400, "messages"),
    ("missing messages", "chat/completions", {"model": MODEL}, 400, "messages"),
    ("missing prompt", "completions", {"model": MODEL}, 400, "prompt"),
    ("empty prompt", "completions", TEXT | {"prompt": ""}, 400, "prompt"),
    ("empty token list", "completions", TEXT | {"prompt": []}, 400, "prompt"),
    ("prompt of a wrong type", "completions", TEXT | {"prompt": {"text": "Hi"}}, 400, "prompt"),
    ("over-long prompt", "completions", TEXT | {"prompt": LONG}, 400, None),
    ("over-long chat", "chat/completions", CHAT | {"messages": [{"role": "user", "content": LONG}]}, 400, None),
    ("negative max_tokens", "completions", TEXT | {"max_tokens": -1}, 400, "max_tokens"),
    ("zero max_tokens", "chat/completions", CHAT | {"max_tokens": 0}, 400, "max_tokens"),
    (
        "negative max_completion_tokens",
        "chat/completions",
        CHAT | {"max_completion_tokens": -5},
        400,
        "max_completion_tokens",
    ),
    ("text as max_tokens", "completions", TEXT | {"max_tokens": "ten"}, 400, "max_tokens"),
    ("more tokens than fit", "completions", TEXT | {"max_tokens": 9000}, 400, None),
    ("text as temperature", "completions", TEXT | {"temperature": "hot"}, 400, "temperature"),
    ("negative temperature", "chat/completions", CHAT | {"temperature": -1}, 400, "temperature"),
    ("n of zero", "completions", TEXT | {"n": 0}, 400, "n"),
    ("text as stream", "completions", TEXT | {"stream": "maybe"}, 400, "stream"),
    (
        "stream options without a stream",
        "completions",
        TEXT | {"stream_options": {"include_usage": True}},
        400,
        "stream_options",
    ),
    ("an image", "chat/completions", CHAT | {"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "messages"),
    (
        "a part of a wrong type",
        "chat/completions",
        CHAT | {"messages": [{"role": "user", "content": [{"type": ["x"]}]}]},
        400,
        None,
    ),
    ("a schema without end", "chat/completions", CHAT | {"response_format": BOMB}, 400, "response_format"),
    ("text as structured outputs", "completions", TEXT | {"structured_outputs": "json"}, 400, "structured_outputs"),
    ("a chunk interval without end", "completions", TEXT | {"stream_interval": 10**25}, 400, "stream_interval"),
    ("handoff", "completions", TEXT | {"kv_transfer_params": {"do_remote_prefill": True}}, 400, "kv_transfer_params"),
    ("null handoff", "chat/completions", CHAT | {"kv_transfer_params": None}, 400, "kv_transfer_params"),
    ("handoff by xargs", "completions", TEXT | {"vllm_xargs": {"kv_transfer_params": "x"}}, 400, "vllm_xargs"),
]
RAW: list[tuple[str, bytes, str | None]] = [
    ("nothing", b"", None),
    ("half an object", b'{"model": "tandem-nano", "prompt": "Hi"', None),
    ("no object", b'["Hi"]', None),
    ("no UTF-8", b'{"model": "tandem-nano", "prompt": "\xff"}', None),
    ("not a number", b'{"model": "tandem-nano", "prompt": "Hi", "temperature": NaN}', None),
    (
        "a handoff in escapes",
        b'{"model":"tandem-nano","prompt":"Hi","kv_transfer_param\\u0073":{"do_remote_prefill":true}}',
        "kv_transfer_params",
    ),
    ("a key twice", b'{"model":"tandem-nano","prompt":"Hi","prompt":"Ho"}', "prompt"),
    ("too deep", b'{"model":"tandem-nano","prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
]


def check_refusal(answer: httpx.Response, status: int, param: str | None) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    assert error["message"]
    if param is not None:
        assert error["param"] == param or param in error["message"], error


def check_unharmed(stack: Stack) -> None:
    answer = stack.http.post(f"{stack.url}/v1/completions", json=TEXT)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("path", "body", "status", "param"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_wrong_request_is_refused(
    path: str, body: dict[str, Any], status: int, param: str | None, stack: Stack
) -> None:
    began = time.monotonic()
    answer = stack.http.post(f"{stack.url}/v1/{path}", json=body)
    check_refusal(answer, status, param)
    assert time.monotonic() - began < AT_ONCE_S


@pytest.mark.parametrize(("body", "param"), [c[1:] for c in RAW], ids=[c[0] for c in RAW])
def test_a_body_that_is_no_request_is_refused(body: bytes, param: str | None, stack: Stack) -> None:
    headers = {"content-type": "application/json"}
    check_refusal(stack.http.post(f"{stack.url}/v1/completions", content=body, headers=headers), 400, param)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_context_that_does_not_fit_is_told_with_its_numbers_and_before_a_stream_begins(
    stack: Stack, is_stream: bool
) -> None:
    """Case 26."""
    body = {"model": MODEL, "prompt": [300] * (MAX_MODEL_LEN + 1), "max_tokens": 1, "stream": is_stream}
    answer = stack.http.post(f"{stack.url}/v1/completions", json=body)
    check_refusal(answer, 400, None)
    assert {str(MAX_MODEL_LEN), str(MAX_MODEL_LEN + 1)} <= set(re.findall(r"\d+", answer.json()["error"]["message"]))


def test_a_body_of_five_megabytes_is_read(stack: Stack) -> None:
    """Case 26: it is the engine that says what is wrong with it."""
    answer = stack.http.post(f"{stack.url}/v1/completions", json=TEXT | {"prompt": "a long story " * 400_000})
    check_refusal(answer, 400, None)
    assert str(MAX_MODEL_LEN) in answer.text


def test_unknown_routes_and_methods_have_the_same_shape(stack: Stack) -> None:
    assert stack.http.get(f"{stack.url}/v1/nothing").json()["error"]["message"]
    answer = stack.http.get(f"{stack.url}/v1/completions")
    assert answer.status_code == 405
    assert answer.json()["error"]["message"]


def test_workers_and_leases_are_unharmed_by_all_of_it(stack: Stack) -> None:
    generations = json.dumps(stack.generations())
    for _, path, body, _, _ in CASES:
        stack.http.post(f"{stack.url}/v1/{path}", json=body)
    check_unharmed(stack)
    deadline = time.monotonic() + 2
    while stack.num_leases("prefill") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stack.num_leases("prefill") == 0
    assert json.dumps(stack.generations()) == generations, "no worker was restarted"


def test_workers_answer_their_router_only(stack: Stack) -> None:
    answer = httpx.post(f"{stack.worker('decode')}/v1/completions", json=TEXT)
    assert answer.status_code == 401
    handoff = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 1}
    answer = httpx.post(f"{stack.worker('prefill')}/v1/completions", json=TEXT | {"kv_transfer_params": handoff})
    assert answer.status_code == 401
