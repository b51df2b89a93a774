"""Requests of one conversation have the same digest, and others have another."""

import json
from typing import Any

import pytest

from router.body import ClientBody
from router.prefix import PREFIX_CHARS, prefix_digest

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Why is the sea salty?"}
ANSWER = {"role": "assistant", "content": "Rivers."}
FOLLOW_UP = {"role": "user", "content": "And lakes?"}


def digest(**body: Any) -> bytes:
    return prefix_digest(ClientBody.parse(json.dumps(body).encode()))


def test_later_turns_of_a_conversation_stay_with_its_first() -> None:
    assert digest(messages=[SYSTEM, QUESTION]) == digest(messages=[SYSTEM, QUESTION, ANSWER, FOLLOW_UP])


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_system_prompt_that_all_conversations_share_does_not_bring_them_together(role: str) -> None:
    shared = {"role": role, "content": "x" * 10 * PREFIX_CHARS}
    assert digest(messages=[shared, QUESTION]) != digest(messages=[shared, FOLLOW_UP])
    assert digest(messages=[shared, QUESTION]) == digest(messages=[QUESTION])


def test_a_system_prompt_alone_counts() -> None:
    other = {"role": "system", "content": "Be long."}
    assert digest(messages=[SYSTEM]) != digest(messages=[other])


def test_text_in_parts_is_the_text() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": QUESTION["content"]}, {"type": "x"}, "y"]}
    assert digest(messages=[parts]) == digest(messages=[QUESTION])


def test_of_a_completion_the_start_of_the_prompt_counts() -> None:
    start = "x" * PREFIX_CHARS
    assert digest(prompt=start + "a") == digest(prompt=start + "b")
    assert digest(prompt="a" + start) != digest(prompt="b" + start)


def test_token_ids_count_as_they_are() -> None:
    start = list(range(PREFIX_CHARS))
    assert digest(prompt=[*start, 1]) == digest(prompt=[*start, 2])
    assert digest(prompt=[1, *start]) != digest(prompt=[2, *start])
    assert digest(prompt=[1, 23]) != digest(prompt=[12, 3])


@pytest.mark.parametrize(
    "body",
    [{"messages": [{"role": "user", "content": None}]}, {"messages": [{"role": ["x"]}]}, {"prompt": None}, {}],
    ids=str,
)
def test_a_prompt_without_text_is_no_fault(body: dict[str, Any]) -> None:
    assert digest(**body) == digest()


def test_the_digest_is_the_same_in_every_process() -> None:
    assert digest(messages=[QUESTION]).hex() == "ee6684eced89a010"
