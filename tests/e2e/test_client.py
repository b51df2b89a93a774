"""The `openai` client gets from the pair what it gets from one engine, field by field."""

import json
from typing import Any

import pytest
from openai import OpenAI

from tests.stack import MODEL, Stack

MESSAGES = [{"role": "system", "content": "Answer shortly."}, {"role": "user", "content": "Why is the sky blue?"}]
PROMPT = "The blocks of a key-value cache are"
# Differ between any two answers, also of one engine.
VOLATILE = {"id", "created", "system_fingerprint", "metrics"}

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seed": {"temperature": 1.0, "seed": 42, "top_p": 0.9},
    "one token": {"temperature": 0, "max_tokens": 1},
    "min tokens": {"temperature": 0, "extra_body": {"min_tokens": 20}, "max_tokens": 24},
    "several choices": {"temperature": 1.0, "seed": 7, "n": 3},
    "presence": {"temperature": 0, "presence_penalty": 1.0, "frequency_penalty": 0.5},
}


def plain(answer: Any) -> dict[str, Any]:
    fields = {k: v for k, v in answer.model_dump().items() if k not in VOLATILE}
    # Prefix hits depend on what each engine was asked before (test_usage).
    fields["usage"].pop("prompt_tokens_details", None)
    return fields


def close(ours: Any, theirs: Any) -> bool:
    """Equal, with logprobs equal up to float32 noise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(close(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(close, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return ours == pytest.approx(theirs, abs=2e-3)
    return bool(ours == theirs)


@pytest.mark.parametrize("name", SETTINGS)
def test_chat_equals_one_engine(name: str, stack: Stack, single: OpenAI) -> None:
    wish: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12} | SETTINGS[name]
    ours, theirs = (plain(client.chat.completions.create(**wish)) for client in (stack.client, single))
    assert ours == theirs
    assert ours["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize("name", SETTINGS)
def test_completion_equals_one_engine(name: str, stack: Stack, single: OpenAI) -> None:
    wish: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12} | SETTINGS[name]
    ours, theirs = (plain(client.completions.create(**wish)) for client in (stack.client, single))
    assert ours == theirs


def test_chat_logprobs_equal_one_engine_from_the_first_token_on(stack: Stack, single: OpenAI) -> None:
    """Case 8."""
    wish: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    wish |= {"logprobs": True, "top_logprobs": 3}
    ours, theirs = (plain(client.chat.completions.create(**wish)) for client in (stack.client, single))
    assert len(ours["choices"][0]["logprobs"]["content"]) == 8
    assert close(ours, theirs)


@pytest.mark.parametrize("echo", [False, True])
def test_completion_logprobs_equal_one_engine(echo: bool, stack: Stack, single: OpenAI) -> None:
    """Case 8."""
    wish: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 5}
    ours, theirs = (plain(client.completions.create(**wish, echo=echo)) for client in (stack.client, single))
    assert close(ours, theirs)
    assert ours["choices"][0]["logprobs"]["tokens"]


def test_tools_and_a_json_schema_equal_one_engine(stack: Stack, single: OpenAI) -> None:
    """Case 10: the prompt is the engines' own to write, on both legs."""
    schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
    wish: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    tool: Any = {"type": "function", "function": {"name": "find", "description": "Find a city.", "parameters": schema}}
    ours, theirs = (plain(c.chat.completions.create(**wish, tools=[tool])) for c in (stack.client, single))
    assert ours == theirs
    # No object: an untrained model may put white space without end between its parts.
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": {"enum": ["Oslo", "Rome"]}}}
    ours, theirs = (plain(c.chat.completions.create(**wish, response_format=form)) for c in (stack.client, single))
    assert ours == theirs
    assert json.loads(ours["choices"][0]["message"]["content"]) in ("Oslo", "Rome")


@pytest.mark.parametrize("with_usage", [False, True])
def test_a_chat_stream_is_its_whole_answer_in_pieces(with_usage: bool, stack: Stack) -> None:
    wish: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    whole = stack.client.chat.completions.create(**wish)
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if with_usage else {}
    chunks = list(stack.client.chat.completions.create(**wish, **options, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len([c for c in chunks if c.choices]) > 3, "it was streamed"
    counts = [(u.prompt_tokens, u.completion_tokens, u.total_tokens) for u in (whole.usage,) if u is not None]
    told = [(c.usage.prompt_tokens, c.usage.completion_tokens, c.usage.total_tokens) for c in chunks if c.usage]
    assert told == (counts if with_usage else [])
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


def test_a_completion_stream_equals_one_engine(stack: Stack, single: OpenAI) -> None:
    wish: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "stream": True}
    ours, theirs = (
        [c.choices[0].text for c in client.completions.create(**wish) if c.choices] for client in (stack.client, single)
    )
    assert "".join(ours) == "".join(theirs) != ""


def test_a_stop_string_ends_the_answer_as_on_one_engine(stack: Stack, single: OpenAI) -> None:
    wish: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    text = single.completions.create(**wish).choices[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    ours, theirs = (plain(client.completions.create(**wish, stop=[stop])) for client in (stack.client, single))
    assert ours == theirs
    assert ours["choices"][0]["finish_reason"] == "stop"
    assert stop not in ours["choices"][0]["text"]


def test_a_stop_at_the_very_first_token_ends_at_once(stack: Stack, single: OpenAI) -> None:
    wish: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    first = single.completions.create(**wish | {"max_tokens": 1}).choices[0].text
    ours, theirs = (plain(client.completions.create(**wish, stop=[first[0]])) for client in (stack.client, single))
    assert ours == theirs
    assert ours["choices"][0]["finish_reason"] == "stop"


def test_an_end_token_as_the_very_first_token_ends_at_once(stack: Stack, single: OpenAI) -> None:
    """Prefill ends by a stop then, not by its token limit; the handoff must still take place."""
    end = stack.end_token
    wish: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    wish["logit_bias"] = {str(end): 100}
    ours, theirs = (plain(client.completions.create(**wish)) for client in (stack.client, single))
    assert ours == theirs
    assert ours["choices"][0]["finish_reason"] == "stop"
    assert ours["usage"]["completion_tokens"] == 1


def test_several_prompts_in_one_request_equal_one_engine(stack: Stack, single: OpenAI) -> None:
    wish: dict[str, Any] = {"model": MODEL, "prompt": [PROMPT, "Another"], "max_tokens": 6, "temperature": 0}
    ours, theirs = (plain(client.completions.create(**wish)) for client in (stack.client, single))
    assert ours == theirs


def test_the_model_is_listed_under_its_served_name(stack: Stack) -> None:
    assert [model.id for model in stack.client.models.list()] == [MODEL]
