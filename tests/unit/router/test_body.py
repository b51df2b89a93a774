"""The two legs' bodies are the client's own text, cut and spliced."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.body import KV_TRANSFER_PARAMS, ClientBody, PrefillRules, extract_handoff
from router.prefill_rules import COMPLETIONS_PREFILL, MESSAGES_PREFILL, RESPONSES_PREFILL
from router.worker_client import Piece
from wire.errors import UpstreamError
from wire.handoff import HandoffRequest, handoff_request_json

ASK = handoff_request_json("0" * 32, 2)
PREFILL_DROPS = COMPLETIONS_PREFILL.drops
KEPT_KEYS = (
    *("model", "messages", "prompt", "tools", "tool_choice", "chat_template_kwargs"),
    *("reasoning_effort", "documents", "add_special_tokens", "truncate_prompt_tokens", "cache_salt", "priority"),
    *("add_generation_prompt", "continue_final_message", "chat_template", "temperature", "seed", "logit_bias", "é"),
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    SCALARS | TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
KEYS = st.sampled_from([*KEPT_KEYS, *sorted(PREFILL_DROPS - {KV_TRANSFER_PARAMS})]) | TEXT.filter(
    lambda key: key != KV_TRANSFER_PARAMS
)
BODIES = st.dictionaries(KEYS, VALUES, max_size=8)
INDENTS = st.sampled_from([None, 0, 3])
AROUND = st.text(alphabet=" \t\r\n", max_size=4)


def joined(pieces: Sequence[Piece]) -> bytes:
    return b"".join(pieces)


def prefill_body(raw: bytes) -> bytes:
    return joined(ClientBody.parse(raw).prefill_body(ASK, COMPLETIONS_PREFILL))


@given(BODIES, INDENTS, AROUND, AROUND)
def test_the_prefill_body_equals_the_same_edit_on_a_dict(
    body: dict[str, Any], indent: int | None, before: str, after: str
) -> None:
    raw = (before + json.dumps(body, indent=indent, ensure_ascii=False) + after).encode()
    expected = {key: value for key, value in body.items() if key not in PREFILL_DROPS}
    expected |= {"max_tokens": 1, "stream": False, KV_TRANSFER_PARAMS: json.loads(ASK)}
    assert json.loads(prefill_body(raw)) == expected


@given(BODIES, INDENTS, AROUND, AROUND)
def test_the_decode_body_is_the_clients_bytes_and_one_more_member(
    body: dict[str, Any], indent: int | None, before: str, after: str
) -> None:
    raw = (before + json.dumps(body, indent=indent) + after).encode()
    decode_body = joined(ClientBody.parse(raw).decode_body('{"x": 1.50}'))
    assert json.loads(decode_body) == body | {KV_TRANSFER_PARAMS: {"x": 1.5}}
    assert decode_body.startswith(raw.rstrip()[:-1])
    assert decode_body.endswith(b'"kv_transfer_params":{"x": 1.50}}')


@given(BODIES, INDENTS)
def test_untouched_members_reach_prefill_as_they_were_spelled(body: dict[str, Any], indent: int | None) -> None:
    client = ClientBody.parse(json.dumps(body, indent=indent).encode())
    sent = ClientBody.parse(joined(client.prefill_body(ASK, COMPLETIONS_PREFILL)))
    for key, member in client.members.items():
        if key not in PREFILL_DROPS:
            there = sent.members[key]
            assert sent.text[there.start : there.end] == client.text[member.start : member.end]


def test_nested_json_keeps_key_order_number_spelling_and_escapes() -> None:
    tools = '[ {"z":1.0,"a":1e2,"m":-0.0,"big":123456789012345678901234567890,"esc":"\\u00e9\\/","dup":1,"dup":2} ]'
    raw = f'{{"tools" :{tools}, "prompt":"hi", "max_tokens":5}}'.encode()
    client = ClientBody.parse(raw)
    assert tools.encode() in joined(client.prefill_body(ASK, COMPLETIONS_PREFILL))
    assert tools.encode() in joined(client.decode_body("{}"))


def test_a_dropped_key_is_dropped_however_it_is_spelled() -> None:
    sent = json.loads(prefill_body(b'{"prompt":"hi","max_token\\u0073":7,"\\u006e":4}'))
    assert sent["max_tokens"] == 1
    assert "n" not in sent


@pytest.mark.parametrize(
    "field",
    [
        *("stream_options", "max_completion_tokens", "min_tokens", "n", "best_of", "use_beam_search", "logprobs"),
        *("top_logprobs", "prompt_logprobs", "stop", "stop_token_ids", "ignore_eos", "return_token_ids", "echo"),
        *("structured_outputs", "logprob_token_ids", "repetition_detection"),
    ],
)
def test_a_field_that_could_hurt_the_one_token_leg_is_not_sent_to_prefill(field: str) -> None:
    client = ClientBody.parse(json.dumps({"prompt": "hi", field: 1}).encode())
    assert field not in json.loads(joined(client.prefill_body(ASK, COMPLETIONS_PREFILL)))
    assert json.loads(joined(client.decode_body("{}")))[field] == 1


@pytest.mark.parametrize(
    ("rules", "limit_field", "dropped", "kept"),
    [
        (
            RESPONSES_PREFILL,
            "max_output_tokens",
            ["include", "top_logprobs", "store", "stop", "enable_response_messages"],
            ["input", "instructions", "text", "structured_outputs", "reasoning", "tools", "truncation", "cache_salt"],
        ),
        (MESSAGES_PREFILL, "max_tokens", ["stop_sequences"], ["system", "thinking", "output_config", "tools", "top_k"]),
    ],
)
def test_each_api_has_its_own_one_token_leg(
    rules: PrefillRules, limit_field: str, dropped: list[str], kept: list[str]
) -> None:
    fields = {name: 7 for name in [limit_field, "stream", *dropped, *kept]}
    sent = json.loads(joined(ClientBody.parse(json.dumps(fields).encode()).prefill_body(ASK, rules)))
    assert sent == {name: 7 for name in kept} | {limit_field: 1, "stream": False, KV_TRANSFER_PARAMS: json.loads(ASK)}


@pytest.mark.parametrize("field", KEPT_KEYS)
def test_a_field_that_shapes_the_prompt_reaches_prefill(field: str) -> None:
    assert json.loads(prefill_body(json.dumps({field: "x"}).encode()))[field] == "x"


def test_the_handoff_is_taken_from_an_answer_as_it_stands() -> None:
    handoff = '{ "b": 1.0, "a": [3,1] }'
    for key in ('"kv_transfer_params":', '"kv_transfer_params" : ', '"kv_transfer_p\\u0061rams":'):
        answer = f'{{"id":"x",{key}{handoff} ,"usage":{{}}}}'
        assert extract_handoff(answer.encode()) == (handoff, json.loads(handoff))


@pytest.mark.parametrize("before", ['"text":"\\"kv_transfer_params\\":{}",', '"text":"kv_transfer_params",', ""])
def test_generated_text_is_never_taken_for_the_handoff(before: str) -> None:
    after = "," + before.rstrip(",") if before else ""
    answer = f'{{{before}"kv_transfer_params":{{"a":1}}{after.replace("text", "more")}}}'
    assert extract_handoff(answer.encode())[1] == {"a": 1}
    with pytest.raises(UpstreamError):
        extract_handoff(("{" + before.rstrip(",") + "}").encode())


@given(st.text(alphabet="0123456789abcdef", min_size=32, max_size=32), st.integers(1, 1024))
def test_the_ask_is_what_the_wire_type_would_write(handoff_id: str, num_readers: int) -> None:
    written = HandoffRequest(handoff_id=handoff_id, num_readers=num_readers).model_dump_json(exclude_none=True)
    assert handoff_request_json(handoff_id, num_readers) == written


@pytest.mark.parametrize(
    "answer",
    [b"", b"{}", b"[]", b"<html>", b'{"kv_transfer_params":null}', b'{"kv_transfer_params":1}', b'{"a":"\xff"}'],
)
def test_an_answer_without_a_handoff_is_the_workers_fault(answer: bytes) -> None:
    with pytest.raises(UpstreamError):
        extract_handoff(answer)
