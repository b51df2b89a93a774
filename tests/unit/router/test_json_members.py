"""Top-level members are found as exact spans, and what is not one strict JSON object is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.json_members import MAX_DEPTH, decode_text, parse_members
from wire.errors import BadRequest

TEXT = st.text(st.characters(codec="utf-8"))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12)


@given(st.dictionaries(TEXT, VALUES), st.sampled_from([None, 0, 2]), st.booleans())
def test_members_are_what_json_loads_says_and_their_spans_hold_them(
    body: dict[str, object], indent: int | None, ensure_ascii: bool
) -> None:
    text = json.dumps(body, indent=indent, ensure_ascii=ensure_ascii)
    members = parse_members(text)
    assert {key: member.value for key, member in members.items()} == json.loads(text)
    assert list(members) == list(json.loads(text))
    for key, member in members.items():
        assert json.loads(text[member.value_start : member.end]) == body[key]
        assert json.loads("{" + text[member.start : member.end] + "}") == {key: body[key]}


@given(st.text())
def test_any_text_is_either_parsed_as_json_loads_does_or_refused(text: str) -> None:
    try:
        members = parse_members(text)
    except BadRequest:
        return
    assert {key: member.value for key, member in members.items()} == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '"text"',
        "1",
        "null",
        "{",
        '{"a"',
        '{"a":',
        '{"a":}',
        '{"a":1',
        '{"a":1,}',
        "{,}",
        '{"a":1 "b":2}',
        '{"a":1}{"b":2}',
        '{"a":1} trailing',
        "{'a':1}",
        "{a:1}",
        '{"a":01}',
        '{"a":+1}',
        '{"a":.5}',
        '{"a":"tab\there"}',
        '{"a":"\\x41"}',
        '{"a":"\\u12g4"}',
        '\ufeff{"a":1}',
        '{"a":NaN}',
        '{"a":[1,{"b":Infinity}]}',
        '{"a":-Infinity}',
        '{"a":' + "9" * 5000 + "}",
    ],
)
def test_what_is_not_one_strict_object_is_a_bad_request(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_members(text)


def test_an_error_does_not_quote_the_body() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_members('{"prompt":"my secret", oops}')
    assert "secret" not in caught.value.message
    assert "oops" not in caught.value.message


@pytest.mark.parametrize("text", ['{"a":1,"b":2,"a":3}', '{"a":1,"\\u0061":2}', '{"a":{"a":1},"a":null}'])
def test_a_key_that_appears_twice_is_named_however_it_is_spelled(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_members(text)
    assert caught.value.param == "a"


def test_a_repeated_key_below_the_top_is_left_to_the_worker() -> None:
    assert parse_members('{"a":{"b":1,"b":2}}')["a"].value == {"b": 2}


@pytest.mark.parametrize("text", ['{"a":"\\ud800"}', '{"a":"\\uDC00"}', '{"\\ud83d":1}', '{"a":[{"b\\udfff":"x"}]}'])
def test_a_lone_surrogate_is_a_bad_request(text: str) -> None:
    with pytest.raises(BadRequest, match="surrogate"):
        parse_members(text)


def test_a_surrogate_pair_is_a_character() -> None:
    assert parse_members('{"a":"\\ud83d\\ude00"}')["a"].value == "\U0001f600"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_the_deepest_allowed_nesting_passes_and_one_more_level_is_refused(opening: str, closing: str) -> None:
    # The top-level object is a level itself.
    def nested(depth: int) -> str:
        return '{"top":' + opening * (depth - 1) + "1" + closing * (depth - 1) + "}"

    assert parse_members(nested(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 10_000, 100_000):
        with pytest.raises(BadRequest, match="nested"):
            parse_members(nested(depth))


def test_many_shallow_containers_are_not_deep() -> None:
    text = json.dumps({"messages": [{"content": [1]}] * 500})
    assert len(parse_members(text)["messages"].value) == 500


@pytest.mark.parametrize("raw", [b"", b" \r\n\t"])
def test_an_empty_body_is_a_bad_request(raw: bytes) -> None:
    with pytest.raises(BadRequest, match="empty"):
        decode_text(raw)


@pytest.mark.parametrize("raw", [b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xc3', '{"a":1}'.encode("utf-16")])
def test_a_body_that_is_not_utf8_is_a_bad_request(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_members(decode_text(raw))
