"""Every field that vLLM takes is let through unchanged, or refused by its name: none is lost or stopped unnoticed."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from router.body import KV_TRANSFER_PARAMS
from router.endpoints import Endpoint
from router.plans import read_body
from wire.errors import BadRequest
from wire.handoff import handoff_request_json

Fields = dict[str, Any]

TRANSFER = {"kv_transfer_params": {"do_remote_prefill": True}, "ec_transfer_params": {"a": 1}}
HELLO = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
RESPONSES_TOOL = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
MESSAGES_TOOL = {"name": "f", "input_schema": SCHEMA}
LOGPROBS = {"logprobs": True}


def alone(**fields: Any) -> dict[str, Fields]:
    return {name: {name: value} for name, value in fields.items()}


# What a field is sent with, where it needs others beside it.
SAMPLED = alone(
    model="nano",
    stream=True,
    temperature=0.7,
    top_p=0.9,
    top_k=5,
    vllm_xargs={"mine": 1},
    cache_salt="salt",
    watermarking=True,
    mm_payload="none",
    return_mm_kwargs=False,
)
CHAT_TEMPLATE = alone(chat_template_kwargs={"enable_thinking": False})
OPENAI = SAMPLED | alone(
    frequency_penalty=0.1,
    presence_penalty=0.1,
    repetition_penalty=1.1,
    logit_bias={"5": 1.0},
    min_p=0.1,
    seed=1,
    stop=["x"],
    stop_token_ids=[5],
    include_stop_str_in_output=True,
    ignore_eos=True,
    skip_special_tokens=False,
    structured_outputs={"json": SCHEMA},
    priority=1,
    request_id="mine",
    session_id="session",
    user="me",
)
COMPLETING = OPENAI | alone(
    n=2,
    max_tokens=9,
    min_tokens=2,
    use_beam_search=True,
    length_penalty=1.1,
    spaces_between_special_tokens=False,
    truncate_prompt_tokens=5,
    truncation_side="left",
    prompt_logprobs=1,
    allowed_token_ids=[5],
    bad_words=["x"],
    echo=True,
    add_special_tokens=True,
    response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    return_tokens_as_token_ids=True,
    return_token_ids=True,
    routed_experts_prompt_start=1,
    return_token_offsets=True,
    repetition_detection={"max_pattern_size": 2, "min_count": 3},
    thinking_token_budget=10,
    stream_interval=2,
)
CHAT_SAMPLES = (
    COMPLETING
    | CHAT_TEMPLATE
    | alone(
        messages=HELLO,
        max_completion_tokens=9,
        logprobs=True,
        tools=[CHAT_TOOL],
        reasoning_effort="low",
        include_reasoning=False,
        parallel_tool_calls=False,
        add_generation_prompt=False,
        documents=[{"title": "t", "text": "x"}],
        chat_template="{{ messages }}",
        media_io_kwargs={"image": {}},
        mm_processor_kwargs={"a": 1},
        return_prompt_text=True,
    )
    | {
        "top_logprobs": LOGPROBS | {"top_logprobs": 2},
        "logprob_token_ids": LOGPROBS | {"logprob_token_ids": [5]},
        "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
        "tool_choice": {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "continue_final_message": {"continue_final_message": True, "add_generation_prompt": False},
    }
)
COMPLETIONS_SAMPLES = (
    COMPLETING
    | alone(prompt=[1, 2, 3], logprobs=2, suffix=None)
    | {
        "logprob_token_ids": {"logprobs": 1, "logprob_token_ids": [5]},
        "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    }
)
RESPONSES_SAMPLES = (
    OPENAI
    | CHAT_TEMPLATE
    | alone(
        input=[{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        instructions="be brief",
        max_output_tokens=9,
        max_tool_calls=2,
        metadata={"a": "b"},
        parallel_tool_calls=False,
        prompt=None,
        reasoning={"effort": "low"},
        include_reasoning=False,
        service_tier="auto",
        store=True,
        text={"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
        tools=[RESPONSES_TOOL],
        truncation="auto",
        prompt_cache_key="key",
        media_io_kwargs={"image": {}},
        mm_processor_kwargs={"a": 1},
        enable_response_messages=True,
        previous_input_messages=[{"role": "user", "content": "hi"}],
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    | {"tool_choice": {"tools": [RESPONSES_TOOL], "tool_choice": {"type": "function", "name": "f"}}}
)
COUNTED = CHAT_TEMPLATE | alone(
    model="nano",
    messages=HELLO,
    system=[{"type": "text", "text": "be brief"}],
    tools=[MESSAGES_TOOL],
    output_config={"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
)
MESSAGES_SAMPLES = (
    SAMPLED
    | COUNTED
    | alone(max_tokens=4096, metadata={"user_id": "me"}, stop_sequences=["x"])
    | {
        "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048},
        "tool_choice": {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "any"}},
    }
)
COUNT_SAMPLES = COUNTED | {
    "thinking": {"thinking": {"type": "disabled"}},
    "tool_choice": {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "any"}},
}

# Endpoint -> vLLM's class, a body, how each field that passes is sent, and values of those that are refused.
APIS: dict[Endpoint, tuple[type[BaseModel], Fields, Mapping[str, Fields], Fields]] = {
    Endpoint.CHAT: (ChatCompletionRequest, {"messages": HELLO}, CHAT_SAMPLES, TRANSFER),
    Endpoint.COMPLETIONS: (
        CompletionRequest,
        {"prompt": "hi"},
        COMPLETIONS_SAMPLES,
        TRANSFER | {"prompt_embeds": "AAAA"},
    ),
    Endpoint.RESPONSES: (
        ResponsesRequest,
        {"input": "hi"},
        RESPONSES_SAMPLES,
        TRANSFER | {"background": True, "previous_response_id": "resp_1"},
    ),
    Endpoint.MESSAGES: (
        AnthropicMessagesRequest,
        {"model": "nano", "max_tokens": 9, "messages": HELLO},
        MESSAGES_SAMPLES,
        TRANSFER,
    ),
    Endpoint.COUNT_TOKENS: (AnthropicCountTokensRequest, {"model": "nano", "messages": HELLO}, COUNT_SAMPLES, {}),
}
PASSED = [(endpoint, name) for endpoint, (_, _, samples, _) in APIS.items() for name in samples]
REFUSED = [(endpoint, name) for endpoint, (*_, refused) in APIS.items() for name in refused]


@pytest.mark.parametrize("endpoint", APIS)
def test_every_field_of_vllm_is_known_here(endpoint: Endpoint) -> None:
    model, _, samples, refused = APIS[endpoint]
    assert set(model.model_fields) == {*samples, *refused}


@pytest.mark.parametrize(("endpoint", "name"), PASSED)
def test_a_field_that_passes_reaches_the_worker_as_it_was_sent(endpoint: Endpoint, name: str) -> None:
    model, base, samples, _ = APIS[endpoint]
    fields = base | samples[name]
    model.model_validate(json.loads(json.dumps(fields)))  # vLLM takes the sample
    body, _ = read_body(endpoint, json.dumps(fields).encode())
    decode = json.loads(b"".join(body.decode_body("{}")))
    assert decode == fields | {KV_TRANSFER_PARAMS: {}}


@pytest.mark.parametrize(("endpoint", "name"), [case for case in PASSED if case[0].prefill is not None])
def test_the_one_token_leg_of_it_is_a_request_that_vllm_takes(endpoint: Endpoint, name: str) -> None:
    model, base, samples, _ = APIS[endpoint]
    assert endpoint.prefill is not None
    body, _ = read_body(endpoint, json.dumps(base | samples[name]).encode())
    sent = json.loads(b"".join(body.prefill_body(handoff_request_json("0" * 32, 1), endpoint.prefill)))
    assert (name in sent) is (name not in endpoint.prefill.drops or name in (endpoint.prefill.limit_field, "stream"))
    request = model.model_validate(sent).model_dump()
    assert (request[endpoint.prefill.limit_field], request["stream"]) == (1, False)
    assert request[KV_TRANSFER_PARAMS]["do_remote_decode"] is True


@pytest.mark.parametrize(("endpoint", "name"), REFUSED)
def test_a_field_that_is_refused_is_named(endpoint: Endpoint, name: str) -> None:
    _, base, _, refused = APIS[endpoint]
    with pytest.raises(BadRequest) as caught:
        read_body(endpoint, json.dumps(base | {name: refused[name]}).encode())
    assert caught.value.param == name
    assert f"`{name}`" in caught.value.message
