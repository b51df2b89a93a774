"""Requests and answers are valid JSON of the announced size, and carry their tag."""

import json

import pytest

from bench.router.cases import CASES, named
from bench.router.chats import (
    DONE,
    find_prompt,
    make_tag,
    prefill_answer,
    request_body,
    stream_pieces,
    whole_answer,
    whole_stream,
)

TAG = make_tag(123)


@pytest.mark.parametrize("prompt_bytes", [400, 200_000])
def test_a_request_is_json_of_about_that_size_and_its_tag_is_found(prompt_bytes: int) -> None:
    body = request_body(prompt_bytes=prompt_bytes, max_tokens=16, is_stream=False).filled(TAG)
    assert json.loads(body)["max_tokens"] == 16
    assert 0.75 * prompt_bytes < len(body) < prompt_bytes + 400
    found = find_prompt(body)
    assert found is not None
    assert found.tag == TAG == b"00000123"
    assert found.prompt_bytes + len(found.rest) == len(body)


def test_a_request_spelled_anew_holds_the_same_prompt() -> None:
    body = request_body(prompt_bytes=400, max_tokens=16, is_stream=True).filled(TAG)
    again = json.dumps(json.loads(body), indent=1, sort_keys=True).encode()
    one, other = find_prompt(body), find_prompt(again)
    assert one is not None
    assert other is not None
    assert (one.tag, one.prompt_bytes) == (other.tag, other.prompt_bytes)


@pytest.mark.parametrize("body", [b"", b"{}", b'"Request 0000012x: End of the request."', b"Request 00000123: cut"])
def test_other_bodies_are_not_taken_for_requests(body: bytes) -> None:
    assert find_prompt(body) is None


def test_a_whole_answer_is_json_with_its_tag() -> None:
    answer = json.loads(whole_answer(16).filled(TAG))
    assert answer["id"] == "chatcmpl-00000123"
    assert answer["choices"][0]["message"]["content"].startswith("Answer 00000123: ")
    assert answer["usage"]["completion_tokens"] == 16


def test_a_prefills_answer_takes_its_params_in_their_place() -> None:
    head, end = prefill_answer()
    answer = json.loads(head.filled(TAG) + b'{"a":1}' + end)
    assert answer["kv_transfer_params"] == {"a": 1}


@pytest.mark.parametrize("num_tokens", [1, 8])
def test_a_stream_is_one_piece_a_token_and_ends_with_usage_and_done(num_tokens: int) -> None:
    pieces = [piece.filled(TAG) for piece in stream_pieces(num_tokens)]
    assert len(pieces) == num_tokens
    events = b"".join(pieces).split(b"\n\n")[:-1]
    assert b"".join(pieces) == whole_stream(num_tokens).filled(TAG)
    assert len(events) == num_tokens + 3
    assert events[-1] + b"\n\n" == DONE
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-00000123"}
    assert chunks[-1]["usage"]["completion_tokens"] == num_tokens
    assert [c["choices"][0]["delta"]["content"] for c in chunks[1:-1]] == [" token"] * num_tokens


def test_cases_are_found_by_name() -> None:
    assert [case.name for case in named(["big", "paced"])] == ["big", "paced"]
    assert set(CASES) == {"small32", "small128", "stream", "big", "paced"}
    with pytest.raises(ValueError, match="no such case: tiny"):
        named(["big", "tiny"])
