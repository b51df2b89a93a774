"""What the router checks itself is refused by field, and the route follows from the fields."""

from collections.abc import Mapping
from typing import Any

import pytest

from router.context import Plan
from router.endpoints import Endpoint, Route
from router.json_members import Member
from router.validate import plan_request
from wire.errors import BadRequest

CHAT: dict[str, Any] = {"model": "nano", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "nano", "prompt": "hi"}
BASES = {Endpoint.CHAT: CHAT, Endpoint.COMPLETIONS: TEXT}
INF = float("inf")


def planned(endpoint: Endpoint, fields: Mapping[str, Any]) -> Plan:
    return plan_request(endpoint, [Member(key, value, 0, 0, 0) for key, value in fields.items()])


def each(field: str, *values: Any) -> list[tuple[str, Any]]:
    return [(field, value) for value in values]


WRONG_EVERYWHERE: list[tuple[str, Any]] = [
    *each("model", 1, "", [], {}),
    *each("max_tokens", 0, -1, 1.5, 2.0, "5", True, [5]),
    *each("min_tokens", -1, 1.0, "1", None, False),
    *each("n", 0, -1, 129, 1.0, "2", True),
    *each("stream", 1, 0, "true", []),
    *each("stream_options", 1, "usage", [], True, {"include_usage": True}),
    *each("stop", 1, "", [""], [1], {"a": 1}, [None]),
    *each("stop_token_ids", 1, "1", ["1"], [1.0], [True]),
    *each("temperature", -0.1, 2.1, INF, "1", True, []),
    *each("priority", 1.0, "1", None, True, 1 << 63, -(1 << 63) - 1),
    *each("top_p", 0, -1, 1.1, INF, "1", False),
    *each("prompt_logprobs", -2, 1.5, "1", True),
    *each("ignore_eos", 1, "yes"),
    *each("use_beam_search", 1, "yes"),
    ("logprob_token_ids", [1, 2]),
    *each("kv_transfer_params", None, {}, {"do_remote_prefill": True}, 0, "x"),
    *each("ec_transfer_params", None, {}, []),
]
WRONG_IN_CHAT: list[tuple[str, Any]] = [
    *each("messages", None, [], "hi", {}, 0),
    *each("max_completion_tokens", 0, -1, 1.5, "5", True),
    *each("logprobs", 1, "true", 0),
    *each("top_logprobs", -2, 1.5, "1", True, 3),
]
WRONG_IN_COMPLETIONS: list[tuple[str, Any]] = [
    *each("prompt", None, "", [], [[]], [""], ["a", ""], 1, {}, [1.5], [True], [-1], [1, "a"]),
    *each("logprobs", True, -2, 1.5, "1"),
    ("n", None),
    ("echo", 1),
    ("prompt_embeds", "AAAA"),
]
WRONG = [
    *((endpoint, *case) for endpoint in BASES for case in WRONG_EVERYWHERE),
    *((Endpoint.CHAT, *case) for case in WRONG_IN_CHAT),
    *((Endpoint.COMPLETIONS, *case) for case in WRONG_IN_COMPLETIONS),
]


@pytest.mark.parametrize(("endpoint", "field", "value"), WRONG)
def test_a_wrong_value_is_refused_by_the_fields_name(endpoint: Endpoint, field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        planned(endpoint, BASES[endpoint] | {field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("endpoint", BASES)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": None, "stream": None, "stream_options": None, "stop": None, "temperature": None, "top_p": None},
        {"model": None},
        {"max_tokens": 1, "min_tokens": 1},
        {"min_tokens": 0},
        {"n": 128},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": False, "stream_options": {}},
        {"stop": "\n"},
        {"stop": ["a", "b", "c", "d"]},
        {"stop": []},
        {"stop_token_ids": [0, 5]},
        {"temperature": 0},
        {"temperature": 2, "top_p": 1, "n": 2},
        {"temperature": 0.7, "top_p": 0.001},
        {"vllm_xargs": {"mine": 1}},
        {"some_new_field": {"a": [1]}},
        {"priority": -(1 << 63)},
        {"priority": (1 << 63) - 1},
    ],
)
def test_what_vllm_takes_passes_and_takes_both_legs(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    plan = planned(endpoint, BASES[endpoint] | fields)
    assert plan.route is Route.PREFILL_DECODE
    assert plan.num_choices == (fields.get("n") or 1)
    assert plan.is_stream is bool(fields.get("stream"))
    assert plan.priority == fields.get("priority", 0)


@pytest.mark.parametrize("key", ["kv_transfer_params", "ec_transfer_params"])
@pytest.mark.parametrize("value", [None, "x", 1])
def test_transfer_parameters_inside_vllm_xargs_are_refused(key: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        planned(Endpoint.COMPLETIONS, TEXT | {"vllm_xargs": {"mine": 1, key: value}})
    assert caught.value.param == "vllm_xargs"


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.CHAT, {"max_tokens": 3, "min_tokens": 4}),
        (Endpoint.CHAT, {"max_completion_tokens": 3, "max_tokens": 9, "min_tokens": 4}),
        (Endpoint.COMPLETIONS, {"max_tokens": 3, "min_tokens": 4}),
        (Endpoint.COMPLETIONS, {"min_tokens": 17}),
    ],
)
def test_min_tokens_above_the_output_limit_is_refused(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        planned(endpoint, BASES[endpoint] | fields)
    assert caught.value.param == "min_tokens"


def test_several_choices_need_a_temperature() -> None:
    with pytest.raises(BadRequest) as caught:
        planned(Endpoint.CHAT, CHAT | {"n": 2, "temperature": 0})
    assert caught.value.param == "n"


PART_TYPES = ["image_url", "input_audio", "audio_url", "video_url", "image_embeds", "input_image", "file", "input_file"]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("kind", PART_TYPES)
@pytest.mark.parametrize("has_type", [True, False])
def test_media_in_a_message_is_refused_since_the_model_takes_text(role: str, kind: str, has_type: bool) -> None:
    part = {kind: {"url": "http://x/y.png"}} | ({"type": kind} if has_type else {})
    content = [{"type": "text", "text": "look"}, part]
    with pytest.raises(BadRequest, match="text only") as caught:
        planned(Endpoint.CHAT, CHAT | {"messages": [{"role": role, "content": content}]})
    assert caught.value.param == "messages"


def test_text_parts_and_the_rest_of_a_message_are_left_to_the_worker() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "an image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": '{"image_url":1}'}}]},
        {"role": "odd", "content": 7},
    ]
    assert planned(Endpoint.CHAT, CHAT | {"messages": messages}).route is Route.PREFILL_DECODE


@pytest.mark.parametrize(
    ("endpoint", "fields", "reason"),
    [
        (Endpoint.CHAT, {"prompt_logprobs": 0}, "prompt_logprobs"),
        (Endpoint.CHAT, {"echo": True}, "prompt_logprobs"),
        (Endpoint.CHAT, {"use_beam_search": True, "n": 2}, "beam_search"),
        (Endpoint.CHAT, {"truncate_prompt_tokens": -1}, "unbounded_truncation"),
        (Endpoint.COMPLETIONS, {"prompt_logprobs": 3}, "prompt_logprobs"),
        (Endpoint.COMPLETIONS, {"echo": True, "logprobs": 0}, "prompt_logprobs"),
        (Endpoint.COMPLETIONS, {"echo": True, "logprobs": 2, "max_tokens": 0}, "prompt_logprobs"),
        (Endpoint.COMPLETIONS, {"use_beam_search": True, "n": 2, "temperature": 0}, "beam_search"),
        (Endpoint.COMPLETIONS, {"prompt": ["a", "b"]}, "multi_prompt"),
        (Endpoint.COMPLETIONS, {"prompt": [[1], [2]]}, "multi_prompt"),
    ],
)
def test_what_a_handoff_cannot_serve_goes_to_decode_alone(
    endpoint: Endpoint, fields: dict[str, Any], reason: str
) -> None:
    plan = planned(endpoint, BASES[endpoint] | fields)
    assert (plan.route, plan.reason) == (Route.DECODE_ONLY, reason)


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.COMPLETIONS, {"echo": True}),
        (Endpoint.COMPLETIONS, {"prompt": ["one"]}),
        (Endpoint.COMPLETIONS, {"prompt": [[1, 2, 3]]}),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2, 3]}),
        (Endpoint.COMPLETIONS, {"prompt_logprobs": None, "logprobs": 5}),
        (Endpoint.COMPLETIONS, {"truncate_prompt_tokens": -1}),
        (Endpoint.CHAT, {"truncate_prompt_tokens": -1, "max_tokens": 5}),
        (Endpoint.CHAT, {"truncate_prompt_tokens": 100}),
        (Endpoint.CHAT, {"logprobs": True, "top_logprobs": 5}),
    ],
)
def test_everything_else_takes_both_legs(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    assert planned(endpoint, BASES[endpoint] | fields).route is Route.PREFILL_DECODE


def test_a_refusal_quotes_no_value() -> None:
    with pytest.raises(BadRequest) as caught:
        planned(Endpoint.COMPLETIONS, TEXT | {"prompt": {"secret": "my prompt"}})
    assert "secret" not in caught.value.message
